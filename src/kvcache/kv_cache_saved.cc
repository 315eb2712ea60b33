// A cache as bytes, and back.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "kvcache/kv_cache.h"
#include "kvcache/kvquant.h"

namespace vericache {
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
  const auto add_floats = [&add](const std::vector<float>& floats) {
    const auto count = static_cast<std::uint32_t>(floats.size());
    add(&count, sizeof(count));
    add(floats.data(), count * sizeof(float));
  };
  for (const Layer& layer : layers_) {
    for (const Part& part : layer.packed) {
      add_segment(part.segment, part.layout.page_bytes());
      if (IsKvQuant(part.layout.format())) {
        const KvQuant& kvquant = part.layout.kvquant();
        add(&kvquant.key_levels, sizeof(kvquant.key_levels));
        add(&kvquant.value_levels, sizeof(kvquant.value_levels));
        add_floats(kvquant.key_centers);
        add_floats(kvquant.key_halves);
        add_floats(kvquant.first_keys);
        add_floats(kvquant.first_values);
      }
    }
    add_segment(layer.tail, tail_layout_.page_bytes());
    add(layer.positions.data(), layer.positions.size() * sizeof(int));
  }
  return saved;
}

bool KvCache::Restore(std::span<const std::byte> saved) {
  const auto take = [&saved](void* to, std::size_t count) {
    if (saved.size() < count) {
      return false;
    }
    std::ranges::copy(saved.first(count), static_cast<std::byte*>(to));
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
  const auto most_floats = static_cast<std::size_t>(geometry_.kv_heads * geometry_.head_dim);
  const auto take_floats = [&](std::vector<float>& floats) {
    std::uint32_t count = 0;
    if (!take(&count, sizeof(count)) || (count != 0 && count != most_floats)) {
      return false;
    }
    floats.resize(count);
    return take(floats.data(), count * sizeof(float));
  };
  const auto take_kvquant = [&](PageLayout& layout) {
    const auto kvquant = std::make_shared<KvQuant>(layout.kvquant());
    layout.set_kvquant(kvquant);
    return take(&kvquant->key_levels, sizeof(kvquant->key_levels)) &&
           take(&kvquant->value_levels, sizeof(kvquant->value_levels)) &&
           take_floats(kvquant->key_centers) && take_floats(kvquant->key_halves) &&
           take_floats(kvquant->first_keys) && take_floats(kvquant->first_values);
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Check(slots(LayerId{static_cast<int>(i)}) == 0, "an empty cache is restored");
    for (Part& part : layers_[i].packed) {
      if (!take_segment(part.segment, part.layout) ||
          (IsKvQuant(part.layout.format()) && !take_kvquant(part.layout))) {
        return false;
      }
    }
    if (!take_segment(layers_[i].tail, tail_layout_)) {
      return false;
    }
    FitPositions(layers_[i]);
    if (!take(layers_[i].positions.data(), layers_[i].positions.size() * sizeof(int))) {
      return false;
    }
  }
  return saved.empty();
}

}  // namespace vericache
