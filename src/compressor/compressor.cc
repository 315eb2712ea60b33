#include "compressor/compressor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace vericache {
namespace {

// The kept rows of a layer of the full cache, one head at a time.
class KeptRows {
 public:
  KeptRows(const KvCache& full, LayerId layer, const LayerSelection& selection)
      : full_(full), layer_(layer), selection_(selection) {}

  void Read(int slot, int head, std::span<float> key, std::span<float> value) const {
    full_.ReadTail(layer_, Position(slot, head), head, key, value);
  }
  void Copy(int slot, int head, KvCache& cache, int tail_slot) const {
    cache.CopySlot(layer_, tail_slot, head, full_, Position(slot, head));
  }

 private:
  int Position(int slot, int head) const {
    return selection_[static_cast<std::size_t>(head)][static_cast<std::size_t>(slot)];
  }

  const KvCache& full_;
  LayerId layer_;
  const LayerSelection& selection_;
};

// Fills one layer of `cache`: whole groups beyond the residual are packed, the rest stays plain.
bool FillLayer(const KeptRows& rows, int count, int packed, LayerId layer, KvCache& cache) {
  const CacheGeometry& geometry = cache.geometry();
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  std::vector<float> keys(static_cast<std::size_t>(geometry.kv_heads * kGroupSlots) * dim);
  std::vector<float> values(keys.size());
  const auto row = [&](std::vector<float>& floats, int head, int slot) {
    return std::span(floats).subspan(static_cast<std::size_t>(head * kGroupSlots + slot) * dim,
                                     dim);
  };
  for (int first = 0; first < packed; first += kGroupSlots) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      for (int s = 0; s < kGroupSlots; ++s) {
        rows.Read(first + s, head, row(keys, head, s), row(values, head, s));
      }
    }
    if (!cache.AppendGroup(layer, keys, values)) {
      return false;
    }
  }
  if (!cache.ExtendLayer(layer, count - packed)) {
    return false;
  }
  for (int slot = packed; slot < count; ++slot) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      rows.Copy(slot, head, cache, slot - packed);
    }
  }
  return true;
}

}  // namespace

int KeptPositions(int positions, double keep) {
  // A hair less: 0.07 of 100 is above 7 in binary.
  return std::clamp(static_cast<int>(std::ceil(keep * positions - 1e-6)), 1, positions);
}

LayerSelection Select(const LayerScores& scores, int count) {
  LayerSelection selection;
  for (const std::vector<float>& head : scores) {
    Check(count <= static_cast<int>(head.size()), "no more positions than there are");
    std::vector<int> order(head.size());
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + count - 1, order.end(), [&](int a, int b) {
      const float x = head[static_cast<std::size_t>(a)];
      const float y = head[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    order.resize(static_cast<std::size_t>(count));
    std::ranges::sort(order);
    selection.push_back(std::move(order));
  }
  return selection;
}

void KeepRecent(LayerScores& scores, int recent) {
  for (std::vector<float>& head : scores) {
    const auto count = static_cast<int>(head.size());
    for (int i = std::max(0, count - recent); i < count; ++i) {
      float& score = head[static_cast<std::size_t>(i)];
      score = std::max(score, kSurelyKept + static_cast<float>(i));
    }
  }
}

KvCache Compress(const Compressor& compressor, const PromptView& prompt, double keep,
                 PagePool& pool, RefreshState* state) {
  if (!compressor.scorer) {
    return CompressBy(compressor, prompt.full, prompt.positions, {}, pool);
  }
  if (state != nullptr) {
    *state = {.scores = {}, .prompt = prompt.positions, .seen = prompt.positions};
  }
  const int count = KeptPositions(prompt.positions, keep);
  const auto scores_of = [&](LayerId layer) {
    LayerScores scores = compressor.scorer->Scores(prompt, layer);
    if (state != nullptr) {
      state->scores.push_back(scores);
    }
    KeepRecent(scores, compressor.scorer->recent(count));
    return scores;
  };
  return CompressBy(compressor, prompt.full, count, scores_of, pool);
}

KvCache CompressBy(const Compressor& compressor, const KvCache& full, int count,
                   const std::function<LayerScores(LayerId)>& scores_of, PagePool& pool) {
  const CacheGeometry& geometry = full.geometry();
  KvCache cache(pool, PageKind::kResident, geometry, full.tail_layout().format(),
                compressor.format);
  const int packed =
      compressor.format ? std::max(0, count - compressor.residual) / kGroupSlots * kGroupSlots : 0;
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  const LayerSelection everything(static_cast<std::size_t>(geometry.kv_heads), all);
  for (int i = 0; i < geometry.layers; ++i) {
    const LayerId layer{i};
    const LayerSelection selection = scores_of ? Select(scores_of(layer), count) : everything;
    if (!FillLayer(KeptRows(full, layer, selection), count, packed, layer, cache)) {
      throw UserError("the compressed cache does not fit into fast memory (" +
                      HumanBytes(pool.budget()) + ")");
    }
  }
  return cache;
}

}  // namespace vericache
