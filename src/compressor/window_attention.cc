#include "compressor/window_attention.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "attention/key_tiles.h"

namespace vericache {

LayerScores WindowAttention(const PromptView& view, LayerId layer, int first, int rows,
                            int counted) {
  const CacheGeometry& geometry = view.full.geometry();
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  const QueryTap& tap = *view.taps->queries;
  const int group = view.heads / geometry.kv_heads;
  const SegmentView full = view.full.tail_view(layer);
  const float scale = 1.0F / std::sqrt(static_cast<float>(geometry.head_dim));
  const auto queries = static_cast<std::size_t>(rows * group);
  const auto slots =
      static_cast<std::size_t>((first + rows + kGroupSlots - 1) / kGroupSlots * kGroupSlots);
  std::vector<float> block(queries * dim);
  std::vector<float> tile(dim * kGroupSlots);
  std::vector<float> weights(queries * slots);
  LayerScores result;
  for (int head = 0; head < geometry.kv_heads; ++head) {
    for (std::size_t q = 0; q < queries; ++q) {
      const auto query_head = static_cast<std::size_t>(head * group + static_cast<int>(q) % group);
      const auto query =
          tap.at(layer, first + static_cast<int>(q) / group).subspan(query_head * dim, dim);
      std::ranges::transform(query, block.begin() + static_cast<std::ptrdiff_t>(q * dim),
                             [scale](float x) { return x * scale; });
    }
    for (std::size_t slot = 0; slot < slots; slot += kGroupSlots) {
      LoadKeyTile(full, head, static_cast<int>(slot), tile);
      MultiplyTile(block, tile, weights.data() + slot, slots);
    }
    std::vector<float>& sums = result.emplace_back(static_cast<std::size_t>(counted));
    for (std::size_t q = 0; q < queries; ++q) {
      const int seen = first + static_cast<int>(q) / group + 1;
      const auto row = std::span(weights).subspan(q * slots, static_cast<std::size_t>(seen));
      Softmax(row);
      for (std::size_t i = 0; i < std::min(sums.size(), row.size()); ++i) {
        sums[i] += row[i];
      }
    }
    for (float& sum : sums) {
      sum /= static_cast<float>(rows * group);
    }
  }
  return result;
}

std::vector<float> AveragePool(std::span<const float> scores, int kernel) {
  const int n = static_cast<int>(scores.size());
  std::vector<float> pooled(scores.size());
  for (int i = 0; i < n; ++i) {
    float sum = 0.0F;
    for (int j = std::max(0, i - kernel / 2); j <= std::min(n - 1, i + kernel / 2); ++j) {
      sum += scores[static_cast<std::size_t>(j)];
    }
    pooled[static_cast<std::size_t>(i)] = sum / static_cast<float>(kernel);
  }
  return pooled;
}

}  // namespace vericache
