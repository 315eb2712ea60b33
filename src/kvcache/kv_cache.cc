#include "kvcache/kv_cache.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace vericache {

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
      at(LayerId{i}).packed.push_back({.layout = PageLayout(format, geometry), .segment = {}});
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

bool KvCache::ExtendLayer(LayerId layer, int rows) {
  Segment& tail = at(layer).tail;
  return Grow(tail, tail_layout_, tail.end + rows);
}

bool KvCache::Extend(int rows) {
  for (int i = 0; i < geometry_.layers; ++i) {
    if (!ExtendLayer(LayerId{i}, rows)) {
      for (int j = 0; j < i; ++j) {
        Segment& tail = at(LayerId{j}).tail;
        Shrink(tail, tail_layout_, tail.end - rows);
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
  }
}

void KvCache::Write(LayerId layer, int tail_slot, int head, std::span<const float> key,
                    std::span<const float> value) {
  Segment& tail = at(layer).tail;
  const int slot = tail.begin + tail_slot;
  Check(slot < tail.end, "the slot was added before it is written");
  WriteSlot(tail_layout_, tail.addresses[static_cast<std::size_t>(slot / kPageSlots)], head,
            slot % kPageSlots, key, value);
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

bool KvCache::AppendGroup(LayerId layer, int part, std::span<const float> keys,
                          std::span<const float> values) {
  Part& packed = at(layer).packed.at(static_cast<std::size_t>(part));
  const int slot = packed.segment.end;
  if (!Grow(packed.segment, packed.layout, slot + kGroupSlots)) {
    return false;
  }
  std::byte* const page = packed.segment.addresses[static_cast<std::size_t>(slot / kPageSlots)];
  const std::size_t head_floats =
      static_cast<std::size_t>(kGroupSlots) * static_cast<std::size_t>(geometry_.head_dim);
  for (int head = 0; head < geometry_.kv_heads; ++head) {
    const std::size_t at = static_cast<std::size_t>(head) * head_floats;
    WriteGroup(packed.layout, page, head, slot % kPageSlots, keys.subspan(at, head_floats),
               values.subspan(at, head_floats));
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
  for (int i = 0; i < geometry_.layers; ++i) {
    const LayerId layer{i};
    while (packed_parts(layer) > 0 && tail_slots(layer) >= residual + kGroupSlots) {
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        for (int s = 0; s < kGroupSlots; ++s) {
          const std::size_t row = static_cast<std::size_t>(head * kGroupSlots + s) * dim;
          ReadTail(layer, s, head, std::span(keys).subspan(row, dim),
                   std::span(values).subspan(row, dim));
        }
      }
      if (!AppendGroup(layer, /*part=*/0, keys, values)) {
        return false;
      }
      DropFront(at(layer).tail, tail_layout_, kGroupSlots);
    }
  }
  return true;
}

namespace {

// What Saved writes of a segment before its pages.
struct SavedSegment {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

}  // namespace

std::vector<std::byte> KvCache::Saved() const {
  std::vector<std::byte> saved;
  saved.reserve(bytes_.count + layers_.size() * 2 * sizeof(SavedSegment));
  const auto add = [&saved](const void* from, std::size_t count) {
    const auto* bytes = static_cast<const std::byte*>(from);
    saved.insert(saved.end(), bytes, bytes + count);
  };
  const auto add_segment = [&add](const Segment& segment, std::size_t page_bytes) {
    const SavedSegment range{.begin = segment.begin, .end = segment.end};
    add(&range, sizeof(range));
    for (const std::byte* page : segment.addresses) {
      add(page, page_bytes);
    }
  };
  for (const Layer& layer : layers_) {
    for (const Part& part : layer.packed) {
      add_segment(part.segment, part.layout.page_bytes());
    }
    add_segment(layer.tail, tail_layout_.page_bytes());
  }
  return saved;
}

bool KvCache::Restore(std::span<const std::byte> saved) {
  const auto take = [&saved](void* to, std::size_t count) {
    if (saved.size() < count) {
      return false;
    }
    std::memcpy(to, saved.data(), count);
    saved = saved.subspan(count);
    return true;
  };
  const auto take_segment = [&](Segment& segment, const PageLayout& layout) {
    SavedSegment range;
    if (!take(&range, sizeof(range)) || range.begin < 0 || range.begin >= kPageSlots ||
        range.end < range.begin ||
        static_cast<std::size_t>(range.end) / kPageSlots > saved.size() / layout.page_bytes() ||
        !Grow(segment, layout, range.end, /*zeroed=*/false)) {
      return false;
    }
    segment.begin = range.begin;
    return std::ranges::all_of(segment.addresses,
                               [&](std::byte* page) { return take(page, layout.page_bytes()); });
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Check(slots(LayerId{static_cast<int>(i)}) == 0, "an empty cache is restored");
    for (Part& part : layers_[i].packed) {
      if (!take_segment(part.segment, part.layout)) {
        return false;
      }
    }
    if (!take_segment(layers_[i].tail, tail_layout_)) {
      return false;
    }
  }
  return saved.empty();
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
