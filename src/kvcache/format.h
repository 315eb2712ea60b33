// How a page holds numbers: element formats, the layout inside a page, and scalar reads and writes.
//
// A page holds kPageSlots slots of one layer, for all KV heads. Inside a page each head has one key
// block and one value block:
//   keys    two half pages of kGroupSlots slots, each [head_dim][kGroupSlots]: slots are adjacent,
//           so a vector register holds one channel of several keys and a dot product needs no
//           horizontal sum, whatever the width of the register;
//   values  [kPageSlots][head_dim]: channels are adjacent, for the same reason on the way out.
// KIVI (Liu et al. 2024, arXiv 2402.02750; github.com/jy-yuan/KIVI) stores b-bit codes with a
// 16-bit scale and minimum for each group of 32 numbers: along the slots for keys (per channel),
// along the channels for values (per token). value = minimum + scale * code.
//
// q8 and q4 are ggml's q8_0 and q4_0 (ggml-quants.c): for each block of 32 channels of one token,
// of keys and values alike, signed codes and a 16-bit scale. value = scale * code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/types.h"

namespace vericache {

inline constexpr int kPageSlots = 64;
inline constexpr int kGroupSlots = 32;  // slots of a half page; numbers of a KIVI group

enum class NumberFormat : std::uint8_t { kF32, kF16, kBF16, kQ8, kQ4, kKivi4, kKivi2 };

// Keys and values each have a format of their own: keys need more bits.
struct KvFormat {
  NumberFormat keys = NumberFormat::kF16;
  NumberFormat values = NumberFormat::kF16;

  bool operator==(const KvFormat&) const = default;
};

// What every page of a model's cache has in common.
struct CacheGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;

  bool operator==(const CacheGeometry&) const = default;
};

// "f16", "kivi4", …
std::string_view Name(NumberFormat format);
// nullopt for an unknown name.
std::optional<NumberFormat> ParseNumberFormat(std::string_view name);

// True for formats whose blocks lie along the channels of one token; others of the grouped ones
// have keys grouped along the slots.
constexpr bool IsBlocked(NumberFormat format) {
  return format == NumberFormat::kQ8 || format == NumberFormat::kQ4;
}

// True for formats that quantize: they are written kGroupSlots slots at a time.
constexpr bool IsGrouped(NumberFormat format) {
  return IsBlocked(format) || format == NumberFormat::kKivi4 || format == NumberFormat::kKivi2;
}
constexpr bool IsGrouped(KvFormat format) {
  return IsGrouped(format.keys) || IsGrouped(format.values);
}

// Bits of one code of a grouped format.
constexpr int CodeBits(NumberFormat format) {
  return format == NumberFormat::kQ8 ? 8 : format == NumberFormat::kKivi2 ? 2 : 4;
}

// Bytes of one number of a plain (not grouped) format.
constexpr std::size_t NumberBytes(NumberFormat format) {
  return format == NumberFormat::kF32 ? 4 : 2;
}

// Bytes of the codes of `count` numbers, count a multiple of kGroupSlots.
constexpr std::size_t CodeBytes(NumberFormat format, int count) {
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(CodeBits(format)) / 8;
}

// Scale and minimum of one group of a KIVI format, two IEEE half-precision numbers. A block of q8
// or q4 has the scale alone.
struct GroupScale {
  std::uint16_t scale;
  std::uint16_t minimum;
};

// Bytes of what belongs to the codes of kGroupSlots numbers.
constexpr std::size_t ScaleBytes(NumberFormat format) {
  return IsBlocked(format) ? sizeof(std::uint16_t) : sizeof(GroupScale);
}

// Where things lie in a page of `format` for `geometry`; all offsets in bytes.
class PageLayout {
 public:
  // Throws UserError where a grouped format cannot hold head_dim (not a multiple of 32).
  PageLayout(KvFormat format, const CacheGeometry& geometry);

  std::size_t page_bytes() const { return head_stride_ * static_cast<std::size_t>(kv_heads_); }
  std::size_t half_key_bytes() const { return half_key_bytes_; }
  KvFormat format() const { return format_; }
  int head_dim() const { return head_dim_; }
  int kv_heads() const { return kv_heads_; }

  // The key block of the half page that holds `slot`, and the value block of the page.
  std::size_t KeyOffset(int head, int slot) const {
    return head_stride_ * static_cast<std::size_t>(head) +
           half_key_bytes_ * static_cast<std::size_t>(slot / kGroupSlots);
  }
  std::size_t ValueOffset(int head) const {
    return head_stride_ * static_cast<std::size_t>(head) + 2 * half_key_bytes_;
  }

 private:
  KvFormat format_;
  int kv_heads_;
  int head_dim_;
  std::size_t half_key_bytes_;
  std::size_t head_stride_;
};

// Writes one key and one value (head_dim floats each) of `head` into `slot` of a page whose formats
// are plain. Rounds to nearest even.
void WriteSlot(const PageLayout& layout, std::byte* page, int head, int slot,
               std::span<const float> key, std::span<const float> value);

// Copies the key and value of a slot of a page to one of another page, bit for bit; both layouts
// are the same, and plain.
void CopySlot(const PageLayout& layout, const std::byte* from, int from_slot, std::byte* to,
              int to_slot, int head);

// Quantizes kGroupSlots keys and values of `head` ([kGroupSlots][head_dim] floats each) into the
// half page that begins at `first_slot`, a multiple of kGroupSlots. Plain formats are allowed, so
// that keys may be grouped and values plain or the other way round.
void WriteGroup(const PageLayout& layout, std::byte* page, int head, int first_slot,
                std::span<const float> keys, std::span<const float> values);

// The key or value of `head` in `slot`, dequantized, into `out` (head_dim floats). The definition
// of every format, one number at a time: attention kernels are tested against it.
void ReadKey(const PageLayout& layout, const std::byte* page, int head, int slot,
             std::span<float> out);
void ReadValue(const PageLayout& layout, const std::byte* page, int head, int slot,
               std::span<float> out);

// The keys of `head` in the half page that holds `slot`, transposed as they lie there:
// out[head_dim][kGroupSlots].
void ReadKeyHalf(const PageLayout& layout, const std::byte* page, int head, int slot,
                 std::span<float> out);

}  // namespace vericache
