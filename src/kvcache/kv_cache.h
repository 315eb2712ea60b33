// The KV cache of one request: full or compressed, the same class.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kvcache/format.h"
#include "kvcache/page_pool.h"

namespace vericache {

// Slots [begin, end) of consecutive pages of one format: what an attention kernel reads. Slot s
// lies in page s / kPageSlots. Valid until the cache changes.
struct SegmentView {
  const PageLayout* layout = nullptr;
  std::span<std::byte* const> pages;
  int begin = 0;
  int end = 0;

  int slots() const { return end - begin; }
};

// The key or value of a head in a slot of a segment, as ReadKey and ReadValue give it; of a KVQuant
// format the first slot of a cache is as it came.
void KeyAt(const SegmentView& segment, int head, int slot, std::span<float> out);
void ValueAt(const SegmentView& segment, int head, int slot, std::span<float> out);

// What KVQuant pages of each layer are written and read by; empty: a KvQuant as it is made.
using KvQuantOfLayers = std::vector<std::shared_ptr<const KvQuant>>;

// The formats of each layer's packed parts.
class PackedFormats {
 public:
  PackedFormats() = default;  // nothing is packed
  // One part, in every layer.
  PackedFormats(KvFormat format) : layers_{{format}} {}  // NOLINT(google-explicit-constructor)
  // Each layer's own; the cache has as many layers.
  explicit PackedFormats(std::vector<std::vector<KvFormat>> layers, KvQuantOfLayers kvquant = {})
      : layers_(std::move(layers)), kvquant_(std::move(kvquant)) {}

  std::span<const KvFormat> at(LayerId layer) const {
    if (layers_.empty()) {
      return {};
    }
    return layers_[layers_.size() == 1 ? 0 : static_cast<std::size_t>(Raw(layer))];
  }
  std::shared_ptr<const KvQuant> kvquant(LayerId layer) const {
    return kvquant_.empty() ? nullptr : kvquant_[static_cast<std::size_t>(Raw(layer))];
  }

 private:
  std::vector<std::vector<KvFormat>> layers_;
  KvQuantOfLayers kvquant_;
};

// Per layer, packed parts in formats of their own, usually one (none where nothing is quantized),
// then a `tail` in a plain format. Within each, slots are in the order of their positions. New rows
// go to the tail; Pack moves the oldest rows of the tail into the first part, a group at a time.
//
// A full cache is a tail alone: slot number = position. In a compressed cache slot j of a head is
// that head's j-th kept position, or of a split one the j-th of the part.
//
// Where a part holds keys before RoPE the cache also knows the positions of its tail's slots. Its
// KVQuant parts have ranges of key channels and a first slot of their own, 16 bytes a channel of a
// head beside the pages.
class KvCache {
 public:
  // `pool` must outlive the cache. Throws UserError where a format does not fit the geometry.
  KvCache(PagePool& pool, PageKind kind, const CacheGeometry& geometry, KvFormat tail,
          const PackedFormats& packed = {});

  const CacheGeometry& geometry() const { return geometry_; }
  const PageLayout& tail_layout() const { return tail_layout_; }

  // Slots held by a layer, packed and tail together.
  int slots(LayerId layer) const;

  // Adds `rows` slots to the tail of every layer, unwritten. False, and nothing changed, where the
  // pool has no room.
  [[nodiscard]] bool Extend(int rows);

  // Adds `rows` slots to the tail of one layer only; while a compressed cache is being made.
  [[nodiscard]] bool ExtendLayer(LayerId layer, int rows);

  // Adds `slots` slots to the tail of every layer, in pages of their own, which the caller
  // overwrites as a whole, see GroupPages: the tail must end with a whole page. False, and nothing
  // changed, where the pool has no room.
  [[nodiscard]] bool ExtendForLoad(int slots);

  // Begins an empty cache with the first `slots` slots of the tail of `other`, whole pages, by
  // reference: the pages stay until both caches have dropped them. Such slots are not written any
  // more, in either cache.
  void ShareFront(const KvCache& other, int slots);

  // The tail's pages that hold slots [kPageSlots * group, kPageSlots * (group + 1)), one a layer,
  // in the order of the layers. Of a full cache: a group as a store keeps it.
  std::vector<std::byte*> GroupPages(int group) const;

  // Drops the last `rows` slots of every layer; they must be in the tail.
  void Truncate(int rows);

  // Writes a head's key and value (head_dim floats each) into a tail slot; slots count from the
  // begin of the tail. `position` is the row's, where a part holds keys before RoPE. May be called
  // for different slots from several threads.
  void Write(LayerId layer, int tail_slot, int head, std::span<const float> key,
             std::span<const float> value, int position = 0);

  // Copies a tail slot of `other` to one of this cache, which was added before, bit for bit: both
  // tails have the same format. Slots count from the begin of each tail. Where a part holds keys
  // before RoPE `other` is a full cache.
  void CopySlot(LayerId layer, int tail_slot, int head, const KvCache& other, int other_slot);

  // Adds `rows` slots of the tail of `other`, from its tail slot `first` on, to the tail of this
  // cache, in every layer, bit for bit: both tails have the same format. False where the pool has
  // no room.
  [[nodiscard]] bool AppendTail(const KvCache& other, int first, int rows);

  // Adds a group of kGroupSlots slots to a packed part of a layer: keys and values are
  // [kv_heads][kGroupSlots][head_dim]; positions, which keys held before RoPE need,
  // [kv_heads][kGroupSlots]. False where the pool has no room.
  [[nodiscard]] bool AppendGroup(LayerId layer, int part, std::span<const float> keys,
                                 std::span<const float> values,
                                 std::span<const int> positions = {});

  // Whether the keys of a packed part are in a KVQuant format whose ranges are not known yet; and
  // what gives them, see SetKeyRanges. Else the part's first group does.
  bool NeedsKeyRanges(LayerId layer, int part) const;
  void SetKeyRanges(LayerId layer, int part, std::span<const float> keys,
                    std::span<const int> positions);

  // While a layer's tail holds at least `residual` + kGroupSlots slots: moves its oldest group into
  // the first packed part. Where a layer has none nothing happens. False where the pool has no
  // room.
  [[nodiscard]] bool Pack(int residual);

  // A tail slot of a layer, dequantized; slots count from the begin of the tail.
  void ReadTail(LayerId layer, int tail_slot, int head, std::span<float> key,
                std::span<float> value) const;

  int tail_slots(LayerId layer) const;
  int packed_parts(LayerId layer) const { return static_cast<int>(at(layer).packed.size()); }
  int packed_slots(LayerId layer) const;  // of all parts
  SegmentView packed_view(LayerId layer, int part) const;
  SegmentView tail_view(LayerId layer) const;

  // All that the cache holds, as bytes; and an empty cache of the same formats made from them.
  // Restore is false, and the cache as good as lost, where the bytes are not those of such a cache,
  // or the pool has no room.
  std::vector<std::byte> Saved() const;
  [[nodiscard]] bool Restore(std::span<const std::byte> saved);

  // Bytes of all pages held now.
  Bytes bytes() const { return bytes_; }
  // The most that was ever held.
  Bytes peak_bytes() const { return peak_bytes_; }

 private:
  struct Segment {
    std::vector<std::shared_ptr<Page>> pages;
    std::vector<std::byte*> addresses;
    int begin = 0;
    int end = 0;
  };
  struct Part {
    PageLayout layout;
    Segment segment;
  };
  struct Layer {
    std::vector<Part> packed;
    Segment tail;
    bool has_positions = false;  // a part holds keys before RoPE
    std::vector<int> positions;  // of the tail, [slot][kv_head]
  };

  bool Grow(Segment& segment, const PageLayout& layout, int end, bool zeroed = true);
  void Shrink(Segment& segment, const PageLayout& layout, int end);
  void DropFront(Segment& segment, const PageLayout& layout, int rows);
  // As many positions as the tail has slots.
  void FitPositions(Layer& layer) const;
  int& PositionOf(Layer& layer, int tail_slot, int head) const {
    return layer.positions[static_cast<std::size_t>(tail_slot * geometry_.kv_heads + head)];
  }
  Layer& at(LayerId layer) { return layers_[static_cast<std::size_t>(Raw(layer))]; }
  const Layer& at(LayerId layer) const { return layers_[static_cast<std::size_t>(Raw(layer))]; }

  PagePool* pool_;
  PageKind kind_;
  CacheGeometry geometry_;
  PageLayout tail_layout_;
  std::vector<Layer> layers_;
  Bytes bytes_;
  Bytes peak_bytes_;
};

// Page groups of a cache of `slots` plain slots.
constexpr int PageGroups(int slots) { return (slots + kPageSlots - 1) / kPageSlots; }

// Bytes that `slots` slots of one format take in one layer, and as many in every layer.
Bytes LayerBytes(const CacheGeometry& geometry, KvFormat format, int slots);
Bytes PlainCacheBytes(const CacheGeometry& geometry, KvFormat format, int slots);

}  // namespace vericache
