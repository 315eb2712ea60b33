#include "kvcache/kv_cache.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"
#include "kvcache/kvquant.h"

namespace vericache {
namespace {

// Whether a slot is the first one of a cache in a KVQuant format, which is kept as it came.
bool IsKeptFirst(const SegmentView& segment, NumberFormat format, int slot) {
  return slot == 0 && IsKvQuant(format) && !segment.layout->kvquant().first_keys.empty();
}

void CopyRow(const std::vector<float>& rows, int row, std::span<float> out) {
  const auto first = static_cast<std::size_t>(row) * out.size();
  std::ranges::copy(std::span(rows).subspan(first, out.size()), out.begin());
}

}  // namespace

void KeyAt(const SegmentView& segment, int head, int slot, std::span<float> out) {
  if (IsKeptFirst(segment, segment.layout->format().keys, slot)) {
    CopyRow(segment.layout->kvquant().first_keys, head, out);
    return;
  }
  ReadKey(*segment.layout, segment.pages[static_cast<std::size_t>(slot / kPageSlots)], head,
          slot % kPageSlots, out);
}

void ValueAt(const SegmentView& segment, int head, int slot, std::span<float> out) {
  if (IsKeptFirst(segment, segment.layout->format().values, slot)) {
    CopyRow(segment.layout->kvquant().first_values, head, out);
    return;
  }
  ReadValue(*segment.layout, segment.pages[static_cast<std::size_t>(slot / kPageSlots)], head,
            slot % kPageSlots, out);
}

KvCache::KvCache(PagePool& pool, PageKind kind, const CacheGeometry& geometry, KvFormat tail,
                 const PackedFormats& packed)
    : pool_(&pool),
      kind_(kind),
      geometry_(geometry),
      tail_layout_(tail, geometry),
      layers_(static_cast<std::size_t>(geometry.layers)) {
  Check(!IsGrouped(tail), "rows are appended one at a time, so the tail is plain");
  for (int i = 0; i < geometry.layers; ++i) {
    for (const KvFormat format : packed.at(LayerId{i})) {
      at(LayerId{i})
          .packed.push_back(
              {.layout = PageLayout(format, geometry, packed.kvquant(LayerId{i})), .segment = {}});
      at(LayerId{i}).has_positions |= IsKvQuant(format.keys);
    }
  }
}

int KvCache::tail_slots(LayerId layer) const { return at(layer).tail.end - at(layer).tail.begin; }
int KvCache::packed_slots(LayerId layer) const {
  int slots = 0;
  for (const Part& part : at(layer).packed) {
    slots += part.segment.end;
  }
  return slots;
}
int KvCache::slots(LayerId layer) const { return packed_slots(layer) + tail_slots(layer); }

bool KvCache::Grow(Segment& segment, const PageLayout& layout, int end, bool zeroed) {
  const std::size_t before = segment.pages.size();
  while (segment.pages.size() < static_cast<std::size_t>(PageGroups(end))) {
    std::optional<Page> page = zeroed ? pool_->Allocate(kind_, layout.page_bytes())
                                      : pool_->AllocateUnwritten(kind_, layout.page_bytes());
    if (!page) {
      Shrink(segment, layout, static_cast<int>(before) * kPageSlots);
      return false;
    }
    segment.addresses.push_back(page->data());
    segment.pages.push_back(std::make_shared<Page>(std::move(*page)));
    bytes_ += Bytes{layout.page_bytes()};
  }
  segment.end = std::max(segment.end, end);
  peak_bytes_ = std::max(peak_bytes_, bytes_);
  return true;
}

void KvCache::Shrink(Segment& segment, const PageLayout& layout, int end) {
  while (segment.pages.size() > static_cast<std::size_t>(PageGroups(end))) {
    segment.pages.pop_back();
    segment.addresses.pop_back();
    bytes_ -= Bytes{layout.page_bytes()};
  }
  segment.end = std::min(segment.end, end);
}

void KvCache::DropFront(Segment& segment, const PageLayout& layout, int rows) {
  segment.begin += rows;
  const int pages = segment.begin / kPageSlots;
  segment.pages.erase(segment.pages.begin(), segment.pages.begin() + pages);
  segment.addresses.erase(segment.addresses.begin(), segment.addresses.begin() + pages);
  segment.begin -= pages * kPageSlots;
  segment.end -= pages * kPageSlots;
  bytes_ -= Bytes{layout.page_bytes()} * static_cast<std::uint64_t>(pages);
}

void KvCache::FitPositions(Layer& layer) const {
  if (layer.has_positions) {
    layer.positions.resize(
        static_cast<std::size_t>((layer.tail.end - layer.tail.begin) * geometry_.kv_heads));
  }
}

bool KvCache::ExtendLayer(LayerId layer, int rows) {
  Segment& tail = at(layer).tail;
  if (!Grow(tail, tail_layout_, tail.end + rows)) {
    return false;
  }
  FitPositions(at(layer));
  return true;
}

bool KvCache::Extend(int rows) {
  for (int i = 0; i < geometry_.layers; ++i) {
    if (!ExtendLayer(LayerId{i}, rows)) {
      for (int j = 0; j < i; ++j) {
        Segment& tail = at(LayerId{j}).tail;
        Shrink(tail, tail_layout_, tail.end - rows);
        FitPositions(at(LayerId{j}));
      }
      return false;
    }
  }
  return true;
}

bool KvCache::ExtendForLoad(int slots) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Segment& tail = layers_[i].tail;
    Check(tail.end % kPageSlots == 0 && packed_slots(LayerId{static_cast<int>(i)}) == 0,
          "pages are loaded as a whole");
    if (!Grow(tail, tail_layout_, tail.end + slots, /*zeroed=*/false)) {
      for (std::size_t j = 0; j < i; ++j) {
        Shrink(layers_[j].tail, tail_layout_, layers_[j].tail.end - slots);
      }
      return false;
    }
  }
  return true;
}

void KvCache::ShareFront(const KvCache& other, int slots) {
  Check(slots % kPageSlots == 0, "whole pages are shared");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Segment& to = layers_[i].tail;
    const Segment& from = other.layers_[i].tail;
    Check(this->slots(LayerId{static_cast<int>(i)}) == 0, "an empty cache begins with them");
    Check(from.begin == 0 && slots <= from.end, "the other one has them");
    to.pages.assign(from.pages.begin(), from.pages.begin() + slots / kPageSlots);
    to.addresses.assign(from.addresses.begin(), from.addresses.begin() + slots / kPageSlots);
    to.end = slots;
    bytes_ += Bytes{tail_layout_.page_bytes()} * to.pages.size();
  }
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

std::vector<std::byte*> KvCache::GroupPages(int group) const {
  std::vector<std::byte*> pages;
  pages.reserve(layers_.size());
  for (const Layer& layer : layers_) {
    pages.push_back(layer.tail.addresses.at(static_cast<std::size_t>(group)));
  }
  return pages;
}

void KvCache::Truncate(int rows) {
  for (Layer& layer : layers_) {
    Check(layer.tail.end - layer.tail.begin >= rows, "only rows of the tail can be dropped");
    Shrink(layer.tail, tail_layout_, layer.tail.end - rows);
    FitPositions(layer);
  }
}

void KvCache::Write(LayerId layer, int tail_slot, int head, std::span<const float> key,
                    std::span<const float> value, int position) {
  Segment& tail = at(layer).tail;
  const int slot = tail.begin + tail_slot;
  Check(slot < tail.end, "the slot was added before it is written");
  WriteSlot(tail_layout_, tail.addresses[static_cast<std::size_t>(slot / kPageSlots)], head,
            slot % kPageSlots, key, value);
  if (at(layer).has_positions) {
    PositionOf(at(layer), tail_slot, head) = position;
  }
}

void KvCache::CopySlot(LayerId layer, int tail_slot, int head, const KvCache& other,
                       int other_slot) {
  Segment& to = at(layer).tail;
  const Segment& from = other.at(layer).tail;
  const int slot = to.begin + tail_slot;
  const int source = from.begin + other_slot;
  Check(slot < to.end && source < from.end, "both slots were added before");
  vericache::CopySlot(tail_layout_, from.addresses[static_cast<std::size_t>(source / kPageSlots)],
                      source % kPageSlots,
                      to.addresses[static_cast<std::size_t>(slot / kPageSlots)], slot % kPageSlots,
                      head);
  if (at(layer).has_positions) {
    PositionOf(at(layer), tail_slot, head) = other_slot;
  }
}

bool KvCache::AppendTail(const KvCache& other, int first, int rows) {
  Check(other.tail_layout_.format() == tail_layout_.format(), "tails of the same format");
  if (!Extend(rows)) {
    return false;
  }
  for (int i = 0; i < geometry_.layers; ++i) {
    const LayerId layer{i};
    const int to = tail_slots(layer) - rows;
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        CopySlot(layer, to + row, head, other, first + row);
      }
    }
  }
  return true;
}

bool KvCache::NeedsKeyRanges(LayerId layer, int part) const {
  const PageLayout& layout = at(layer).packed.at(static_cast<std::size_t>(part)).layout;
  return IsKvQuant(layout.format().keys) && layout.kvquant().key_centers.empty();
}

void KvCache::SetKeyRanges(LayerId layer, int part, std::span<const float> keys,
                           std::span<const int> positions) {
  PageLayout& layout = at(layer).packed.at(static_cast<std::size_t>(part)).layout;
  const auto kvquant = std::make_shared<KvQuant>(layout.kvquant());
  vericache::SetKeyRanges(*kvquant, geometry_.kv_heads, geometry_.head_dim,
                          layout.format().outliers, keys, positions);
  layout.set_kvquant(kvquant);
}

namespace {

// The first row of each head of a group: of what is [kv_head][kGroupSlots][head_dim].
std::vector<float> FirstRows(std::span<const float> group, const CacheGeometry& geometry) {
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  std::vector<float> rows;
  for (std::size_t at = 0; at < group.size(); at += kGroupSlots * dim) {
    rows.insert(rows.end(), group.begin() + static_cast<std::ptrdiff_t>(at),
                group.begin() + static_cast<std::ptrdiff_t>(at + dim));
  }
  return rows;
}

}  // namespace

bool KvCache::AppendGroup(LayerId layer, int part, std::span<const float> keys,
                          std::span<const float> values, std::span<const int> positions) {
  Part& packed = at(layer).packed.at(static_cast<std::size_t>(part));
  const int slot = packed.segment.end;
  if (!Grow(packed.segment, packed.layout, slot + kGroupSlots)) {
    return false;
  }
  if (NeedsKeyRanges(layer, part)) {
    SetKeyRanges(layer, part, keys, positions);
  }
  if (slot == 0 && IsKvQuant(packed.layout.format())) {
    const auto kvquant = std::make_shared<KvQuant>(packed.layout.kvquant());
    kvquant->first_keys = FirstRows(keys, geometry_);
    kvquant->first_values = FirstRows(values, geometry_);
    packed.layout.set_kvquant(kvquant);
  }
  std::byte* const page = packed.segment.addresses[static_cast<std::size_t>(slot / kPageSlots)];
  const std::size_t head_floats =
      static_cast<std::size_t>(kGroupSlots) * static_cast<std::size_t>(geometry_.head_dim);
  for (int head = 0; head < geometry_.kv_heads; ++head) {
    const std::size_t at = static_cast<std::size_t>(head) * head_floats;
    WriteGroup(packed.layout, page, head, slot % kPageSlots, keys.subspan(at, head_floats),
               values.subspan(at, head_floats),
               positions.empty()
                   ? positions
                   : positions.subspan(static_cast<std::size_t>(head * kGroupSlots), kGroupSlots));
  }
  return true;
}

void KvCache::ReadTail(LayerId layer, int tail_slot, int head, std::span<float> key,
                       std::span<float> value) const {
  const Segment& tail = at(layer).tail;
  const int slot = tail.begin + tail_slot;
  const std::byte* page = tail.addresses[static_cast<std::size_t>(slot / kPageSlots)];
  ReadKey(tail_layout_, page, head, slot % kPageSlots, key);
  ReadValue(tail_layout_, page, head, slot % kPageSlots, value);
}

bool KvCache::Pack(int residual) {
  const bool any = std::any_of(layers_.begin(), layers_.end(), [residual](const Layer& layer) {
    return !layer.packed.empty() && layer.tail.end - layer.tail.begin >= residual + kGroupSlots;
  });
  if (!any) {
    return true;
  }
  const auto dim = static_cast<std::size_t>(geometry_.head_dim);
  std::vector<float> keys(static_cast<std::size_t>(geometry_.kv_heads * kGroupSlots) * dim);
  std::vector<float> values(keys.size());
  std::vector<int> positions(static_cast<std::size_t>(geometry_.kv_heads * kGroupSlots));
  for (int i = 0; i < geometry_.layers; ++i) {
    const LayerId layer{i};
    while (packed_parts(layer) > 0 && tail_slots(layer) >= residual + kGroupSlots) {
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        for (int s = 0; s < kGroupSlots; ++s) {
          const std::size_t row = static_cast<std::size_t>(head * kGroupSlots + s) * dim;
          ReadTail(layer, s, head, std::span(keys).subspan(row, dim),
                   std::span(values).subspan(row, dim));
          if (at(layer).has_positions) {
            positions[static_cast<std::size_t>(head * kGroupSlots + s)] =
                PositionOf(at(layer), s, head);
          }
        }
      }
      if (!AppendGroup(layer, /*part=*/0, keys, values, positions)) {
        return false;
      }
      DropFront(at(layer).tail, tail_layout_, kGroupSlots);
      if (at(layer).has_positions) {
        at(layer).positions.erase(
            at(layer).positions.begin(),
            at(layer).positions.begin() + static_cast<std::ptrdiff_t>(positions.size()));
      }
    }
  }
  return true;
}

SegmentView KvCache::packed_view(LayerId layer, int part) const {
  const Part& packed = at(layer).packed[static_cast<std::size_t>(part)];
  return {.layout = &packed.layout,
          .pages = packed.segment.addresses,
          .begin = packed.segment.begin,
          .end = packed.segment.end};
}

SegmentView KvCache::tail_view(LayerId layer) const {
  const Segment& tail = at(layer).tail;
  return {.layout = &tail_layout_, .pages = tail.addresses, .begin = tail.begin, .end = tail.end};
}

Bytes LayerBytes(const CacheGeometry& geometry, KvFormat format, int slots) {
  return Bytes{PageLayout(format, geometry).page_bytes()} *
         static_cast<std::uint64_t>(PageGroups(slots));
}

Bytes PlainCacheBytes(const CacheGeometry& geometry, KvFormat format, int slots) {
  return LayerBytes(geometry, format, slots) * static_cast<std::uint64_t>(geometry.layers);
}

}  // namespace vericache
