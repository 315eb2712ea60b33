#include "evaluation/kvquant_calibrator.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/size.h"
#include "evaluation/kvquant_levels.h"
#include "evaluation/text_windows.h"
#include "kvcache/kv_cache.h"
#include "model/rope.h"

namespace vericache {
namespace {

// The rows of a layer in whole groups, but the first row of each context: keys and values
// [kv_head][row][head_dim], positions [kv_head][row].
struct LayerRows {
  LayerRows(const std::vector<std::unique_ptr<KvCache>>& caches, LayerId layer) {
    const CacheGeometry& geometry = caches[0]->geometry();
    const std::size_t dim = Size(geometry.head_dim);
    std::vector<float> key(dim);
    std::vector<float> value(dim);
    for (int head = 0; head < geometry.kv_heads; ++head) {
      for (const auto& cache : caches) {
        const int rows = (cache->tail_slots(layer) - 1) / kGroupSlots * kGroupSlots;
        for (int row = 1; row <= rows; ++row) {
          cache->ReadTail(layer, row, head, key, value);
          keys.insert(keys.end(), key.begin(), key.end());
          values.insert(values.end(), value.begin(), value.end());
          positions.push_back(row);
        }
      }
    }
  }

  std::vector<float> keys;
  std::vector<float> values;
  std::vector<int> positions;
};

KvQuantLevelSet KeyLevels(const KvQuant& kvquant, const LayerRows& rows,
                          const CacheGeometry& geometry) {
  LevelSearch search;
  const std::size_t dim = Size(geometry.head_dim);
  const std::size_t of_head = rows.positions.size() / Size(geometry.kv_heads);
  std::vector<float> row(dim);
  for (std::size_t r = 0; r < rows.positions.size(); ++r) {
    std::ranges::copy(std::span(rows.keys).subspan(r * dim, dim), row.begin());
    kvquant.rope->TurnBack(row, rows.positions[r]);
    for (std::size_t c = 0; c < dim; ++c) {
      const std::size_t channel = r / of_head * dim + c;
      const float half = kvquant.key_halves[channel];
      const float number = half > 0.0F ? (row[c] - kvquant.key_centers[channel]) / half : 0.0F;
      if (number >= -1.0F && number <= 1.0F) {  // others are outliers
        search.Add(number);
      }
    }
  }
  return search.Levels();
}

KvQuantLevelSet ValueLevels(const LayerRows& rows, const CacheGeometry& geometry, float outliers) {
  LevelSearch search;
  const std::size_t group = Size(kGroupSlots * geometry.head_dim);
  for (std::size_t first = 0; first < rows.values.size(); first += group) {
    const NormalizedValues normalized =
        NormalizeValues(std::span(rows.values).subspan(first, group), geometry.head_dim, outliers);
    for (std::size_t i = 0; i < group; ++i) {
      if (!normalized.apart[i]) {
        search.Add(normalized.numbers[i]);
      }
    }
  }
  return search.Levels();
}

}  // namespace

std::vector<KvQuant> CalibrateKvQuant(Transformer& transformer,
                                      std::span<const std::vector<TokenId>> texts,
                                      const CalibrationOptions& options,
                                      const std::function<void(int done, int total)>& on_progress) {
  const Model& model = transformer.model();
  const CacheGeometry geometry = model.params().geometry();
  const auto windows = TextWindows(texts, options.tokens, options.window, model.params().context);
  std::size_t tokens = 0;
  for (const auto& window : windows) {
    tokens += window.size();
  }
  if (tokens < 2 * kGroupSlots) {
    throw UserError("too little text to calibrate with: it has less than " +
                    std::to_string(2 * kGroupSlots) + " tokens");
  }
  const int total = static_cast<int>(windows.size()) + geometry.layers;
  int done = 0;
  const auto tell = [&] {
    if (on_progress) {
      on_progress(++done, total);
    }
  };
  PagePool pool({std::numeric_limits<std::uint64_t>::max()});
  std::vector<std::unique_ptr<KvCache>> caches;
  for (const auto& window : windows) {
    caches.push_back(std::make_unique<KvCache>(pool, PageKind::kTransient, geometry, KvFormat{}));
    Prefill(transformer, window, options.prefill_chunk, *caches.back());
    tell();
  }
  const auto rope = RopeTableOf(model);
  std::vector<KvQuant> layers;
  for (int i = 0; i < geometry.layers; ++i) {
    const LayerRows rows(caches, LayerId{i});
    KvQuant& layer = layers.emplace_back();
    layer.rope = rope;
    SetKeyRanges(layer, geometry.kv_heads, geometry.head_dim, options.outliers, rows.keys,
                 rows.positions);
    layer.key_levels = KeyLevels(layer, rows, geometry);
    layer.value_levels = ValueLevels(rows, geometry, options.outliers);
    tell();
  }
  return layers;
}

}  // namespace vericache
