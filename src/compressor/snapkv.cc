#include "compressor/snapkv.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "attention/key_tiles.h"
#include "base/error.h"

namespace vericache {
namespace {

std::vector<float> AveragePool(const std::vector<float>& scores, int kernel) {
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

}  // namespace

SnapKv::SnapKv(MethodOptions& options)
    : window_(options.Integer("window", kWindow, 1, 256)),
      kernel_(options.Integer("kernel", kKernel, 1, 4095)) {
  if (kernel_ % 2 == 0) {
    throw UserError("the option kernel of snapkv is odd, not " + std::to_string(kernel_));
  }
}

LayerScores SnapKv::Scores(const PromptView& prompt, LayerId layer) const {
  const CacheGeometry& geometry = prompt.full.geometry();
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  const QueryTap& tap = *prompt.taps->queries;
  const int window = std::min(window_, prompt.positions);
  const int before = prompt.positions - window;
  const int group = prompt.heads / geometry.kv_heads;
  const SegmentView full = prompt.full.tail_view(layer);
  const float scale = 1.0F / std::sqrt(static_cast<float>(geometry.head_dim));
  const auto queries = static_cast<std::size_t>(window * group);
  const auto slots =
      static_cast<std::size_t>((prompt.positions + kGroupSlots - 1) / kGroupSlots * kGroupSlots);
  std::vector<float> rows(queries * dim);
  std::vector<float> tile(dim * kGroupSlots);
  std::vector<float> weights(queries * slots);
  LayerScores result;
  for (int head = 0; head < geometry.kv_heads; ++head) {
    for (std::size_t q = 0; q < queries; ++q) {
      const int w = static_cast<int>(q) / group;
      const auto query_head = static_cast<std::size_t>(head * group + static_cast<int>(q) % group);
      const auto query = tap.row(layer, tap.window() - window + w).subspan(query_head * dim, dim);
      std::ranges::transform(query, rows.begin() + static_cast<std::ptrdiff_t>(q * dim),
                             [scale](float x) { return x * scale; });
    }
    for (std::size_t slot = 0; slot < slots; slot += kGroupSlots) {
      LoadKeyTile(full, head, static_cast<int>(slot), tile);
      MultiplyTile(rows, tile, weights.data() + slot, slots);
    }
    std::vector<float> sums(static_cast<std::size_t>(before));
    for (std::size_t q = 0; q < queries; ++q) {
      const int seen = before + static_cast<int>(q) / group + 1;
      const auto row = std::span(weights).subspan(q * slots, static_cast<std::size_t>(seen));
      Softmax(row);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] += row[i];
      }
    }
    for (float& sum : sums) {
      sum /= static_cast<float>(window * group);
    }
    std::vector<float>& scores = result.emplace_back(AveragePool(sums, kernel_));
    for (int i = before; i < prompt.positions; ++i) {
      scores.push_back(kSurelyKept + static_cast<float>(i));
    }
  }
  return result;
}

}  // namespace vericache
