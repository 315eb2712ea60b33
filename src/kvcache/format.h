// How a page holds numbers: the layout inside a page, and scalar reads and writes.
//
// A page holds kPageSlots slots of one layer, for all KV heads. Inside a page each head has one key
// block and one value block:
//   keys    two half pages of kGroupSlots slots, each [head_dim][kGroupSlots]: slots are adjacent,
//           so a vector register holds one channel of several keys and a dot product needs no
//           horizontal sum, whatever the width of the register;
//   values  [kPageSlots][head_dim]: channels are adjacent, for the same reason on the way out.
// In a grouped format that is how the codes lie; the scales follow them:
//   keys    of a half page: group [channel], block [head_dim / 32][slot], row [slot]; token as
//           block, all scales and then all minimums;
//   values  of the page: [slot][head_dim / 32], row [slot].
// A scale and its minimum are adjacent where nothing else is said. What follows the codes of a
// KVQuant format: kvcache/kvquant.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/types.h"
#include "kvcache/number_format.h"

namespace vericache {

inline constexpr int kPageSlots = 64;

struct KvQuant;

// Keys and values each have a format of their own: keys need more bits.
struct KvFormat {
  NumberFormat keys = NumberFormat::kF16;
  NumberFormat values = NumberFormat::kF16;
  // Of the numbers of a KVQuant format, the share that is held apart (1% in the paper).
  float outliers = 0.01F;

  bool operator==(const KvFormat&) const = default;
};

constexpr bool IsGrouped(KvFormat format) {
  return IsGrouped(format.keys) || IsGrouped(format.values);
}

constexpr bool IsKvQuant(KvFormat format) {
  return IsKvQuant(format.keys) || IsKvQuant(format.values);
}

// What every page of a model's cache has in common.
struct CacheGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;

  bool operator==(const CacheGeometry&) const = default;
};

// Where things lie in a page of `format` for `geometry`; all offsets in bytes.
class PageLayout {
 public:
  // Throws UserError where a grouped format cannot hold head_dim (not a multiple of 32). `kvquant`
  // is what pages of a KVQuant format are written and read by; nullptr: a KvQuant as it is made.
  PageLayout(KvFormat format, const CacheGeometry& geometry,
             std::shared_ptr<const KvQuant> kvquant = nullptr);

  std::size_t page_bytes() const { return head_stride_ * static_cast<std::size_t>(kv_heads_); }
  std::size_t half_key_bytes() const { return half_key_bytes_; }
  KvFormat format() const { return format_; }
  // Whether keys, and values, are held rotated.
  bool rotated_keys() const { return Traits(format_.keys).rotated; }
  bool rotated_values() const { return Traits(format_.values).rotated; }
  int head_dim() const { return head_dim_; }
  int kv_heads() const { return kv_heads_; }
  // Of KVQuant formats. What has been written is read by what it was written by.
  const KvQuant& kvquant() const { return *kvquant_; }
  void set_kvquant(std::shared_ptr<const KvQuant> kvquant) { kvquant_ = std::move(kvquant); }

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
  std::shared_ptr<const KvQuant> kvquant_;
};

// Writes one key and one value (head_dim floats each) of `head` into `slot` of a page whose formats
// are plain. Rounds to nearest even.
void WriteSlot(const PageLayout& layout, std::byte* page, int head, int slot,
               std::span<const float> key, std::span<const float> value);

// Copies the key and value of a slot of a page to one of another page, bit for bit; both layouts
// are the same, and plain.
void CopySlot(const PageLayout& layout, const std::byte* from, int from_slot, std::byte* to,
              int to_slot, int head);

// Rotates where the format says so and quantizes kGroupSlots keys and values of `head`
// ([kGroupSlots][head_dim] floats each) into the half page that begins at `first_slot`, a multiple
// of kGroupSlots. Plain formats are allowed, so that keys may be grouped and values plain or the
// other way round. Keys that are held before RoPE need their positions.
void WriteGroup(const PageLayout& layout, std::byte* page, int head, int first_slot,
                std::span<const float> keys, std::span<const float> values,
                std::span<const int> positions = {});

// The key or value of `head` in `slot`, dequantized, into `out` (head_dim floats); rotated where
// the format is, as attention kernels want it, and after RoPE wherever keys lie before it. The
// definition of every format, one number at a
// time: kernels are tested against it.
void ReadKey(const PageLayout& layout, const std::byte* page, int head, int slot,
             std::span<float> out);
void ReadValue(const PageLayout& layout, const std::byte* page, int head, int slot,
               std::span<float> out);

}  // namespace vericache
