// KVQuant (Hooper et al., NeurIPS 2024, arXiv 2401.18079): non-uniform levels, keys per channel
// before RoPE, values per token, outliers apart (dense-and-sparse), the first token as it is.
//
// number = center + half * level: b-bit codes of 2^b levels between -1 and 1; center and half range
// of keys belong to a channel of a head and are the same for a whole cache, those of values to a
// token of a head. Behind the codes lie
//   keys    of a half page: the positions, [slot] low 16 bits and then [slot] high 8 bits, and the
//           outliers;
//   values  of the page: center and half range of each slot, in half precision, and the outliers of
//           the first half page and of the second.
// Outliers of a half page of a head have a fixed number of places: first the numbers' indices in
// the half page, as its codes lie (keys channel * 32 + slot, values slot * head_dim + channel), 16
// bits each, and then the numbers, in half precision as full caches hold them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/format.h"
#include "kvcache/rope_table.h"

namespace vericache {

// The levels of b bits, ascending; those beyond the 2^b-th are not used. As RowLevels': a level is
// (byte - 128) / 127.
using KvQuantLevels = std::array<std::uint8_t, 16>;
inline constexpr int kKvQuantLeastBits = 2;
inline constexpr int kKvQuantMostBits = 4;
using KvQuantLevelSet = std::array<KvQuantLevels, kKvQuantMostBits - kKvQuantLeastBits + 1>;

// Levels of least squared error for a normal distribution whose farthest 1%, the outliers, is cut
// off (at 2.5758 deviations), over where it is cut: Lloyd's iteration on its density, see
// tests/reference/kvquant.py.
inline constexpr float kNormalCut = 2.5758293F;
inline constexpr KvQuantLevelSet kNormalLevels = {{
    {58, 107, 149, 198},
    {33, 67, 93, 117, 139, 163, 189, 223},
    {18, 40, 58, 73, 86, 99, 111, 122, 134, 145, 157, 170, 183, 198, 216, 238},
}};

// What the pages of one layer are written and read by.
struct KvQuant {
  KvQuantLevelSet key_levels = kNormalLevels;
  KvQuantLevelSet value_levels = kNormalLevels;
  // Of each channel, [kv_head][channel]. Empty: not known yet; a normal distribution's are taken.
  std::vector<float> key_centers;
  std::vector<float> key_halves;
  std::shared_ptr<const RopeTable> rope;  // nullptr: keys are held as they come
  // The key, as it came, and the value of each head's first slot of a cache, [kv_head][head_dim]:
  // KeyAt and ValueAt give them. Empty as long as there is none.
  std::vector<float> first_keys;
  std::vector<float> first_values;

  const KvQuantLevels& key_levels_of(NumberFormat format) const {
    return key_levels[static_cast<std::size_t>(Traits(format).bits - kKvQuantLeastBits)];
  }
  const KvQuantLevels& value_levels_of(NumberFormat format) const {
    return value_levels[static_cast<std::size_t>(Traits(format).bits - kKvQuantLeastBits)];
  }
};

// Places for outliers of a half page of a head.
constexpr int OutlierPlaces(float outliers, int head_dim) {
  return static_cast<int>(outliers * static_cast<float>(kGroupSlots * head_dim) + 1e-3F);
}
inline constexpr std::size_t kOutlierBytes = 2 * sizeof(std::uint16_t);

// Positions that a half page holds are below.
inline constexpr int kKvQuantPositions = 1 << 24;

// Where things lie in a half page of keys, and in a page of values.
struct KvQuantKeyPlacesOf {
  std::size_t low_positions;
  std::size_t high_positions;
  std::size_t outliers;
  std::size_t bytes;
};
struct KvQuantValuePlacesOf {
  std::size_t ranges;                   // a slot: center, half range
  std::array<std::size_t, 2> outliers;  // of each half page
  std::size_t bytes;
};
KvQuantKeyPlacesOf KvQuantKeyPlaces(KvFormat format, int head_dim);
KvQuantValuePlacesOf KvQuantValuePlaces(KvFormat format, int head_dim);

// What a half page of keys, and the half page of values from first_slot on, of one head are written
// as; `block` is the key block of the half page, and the value block of the page. Of keys, those
// numbers are outliers whose level is farthest off; of values, those that are the most deviations
// of their token away from its mean. `positions` may be empty without a RoPE table.
void WriteKvQuantKeys(const PageLayout& layout, std::byte* block, int head,
                      std::span<const float> keys, std::span<const int> positions);
void WriteKvQuantValues(const PageLayout& layout, std::byte* block, int first_slot,
                        std::span<const float> values);
void ReadKvQuantKey(const PageLayout& layout, const std::byte* block, int head, int slot,
                    std::span<float> out);
void ReadKvQuantValue(const PageLayout& layout, const std::byte* block, int slot,
                      std::span<float> out);

// Sets the ranges of key channels from some keys, [kv_head][row][head_dim] as they come, at
// positions [kv_head][row]: those in which all but `outliers` of the numbers lie, half of these
// below and half above.
void SetKeyRanges(KvQuant& kvquant, int kv_heads, int head_dim, float outliers,
                  std::span<const float> keys, std::span<const int> positions);

// A half page of values, [kGroupSlots][head_dim], over their tokens' ranges: outliers, which
// `apart` then marks, may be beyond -1 and 1.
struct NormalizedValues {
  std::array<std::uint16_t, kGroupSlots> centers;  // half precision
  std::array<std::uint16_t, kGroupSlots> halves;
  std::vector<float> numbers;
  std::vector<bool> apart;
};
NormalizedValues NormalizeValues(std::span<const float> values, int head_dim, float outliers);

}  // namespace vericache
