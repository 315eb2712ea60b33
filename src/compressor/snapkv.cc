#include "compressor/snapkv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "base/error.h"

namespace vericache {
namespace {

// Scores of one query against a half page of keys, [head_dim][kGroupSlots].
void Dot(std::span<const float> query, const float* keys, float scale, float* scores) {
  std::array<float, kGroupSlots> sums{};
  for (const float q : query) {
    for (int s = 0; s < kGroupSlots; ++s) {
      sums[static_cast<std::size_t>(s)] += q * keys[s];
    }
    keys += kGroupSlots;
  }
  for (int s = 0; s < kGroupSlots; ++s) {
    scores[s] = sums[static_cast<std::size_t>(s)] * scale;
  }
}

// Adds softmax(scores[0, seen)) to `sums`, for its first sums.size().
void AddSoftmax(std::span<float> scores, std::vector<float>& sums) {
  const float most = *std::max_element(scores.begin(), scores.end());
  float total = 0.0F;
  for (float& score : scores) {
    score = std::exp(score - most);
    total += score;
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] += scores[i] / total;
  }
}

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

std::vector<std::vector<float>> SnapKv::Scores(const PromptView& prompt, LayerId layer) const {
  const CacheGeometry& geometry = prompt.full.geometry();
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  const int window = std::min(window_, prompt.positions);
  const int before = prompt.positions - window;
  const int group = prompt.heads / geometry.kv_heads;
  const SegmentView full = prompt.full.tail_view(layer);
  const float scale = 1.0F / std::sqrt(static_cast<float>(geometry.head_dim));
  const auto queries = static_cast<std::size_t>(window * group);
  const std::size_t halves =
      static_cast<std::size_t>((prompt.positions + kGroupSlots - 1) / kGroupSlots);
  std::vector<float> keys(dim * kGroupSlots);
  std::vector<float> scores(queries * halves * kGroupSlots);
  std::vector<std::vector<float>> result;
  for (int head = 0; head < geometry.kv_heads; ++head) {
    for (std::size_t half = 0; half < halves; ++half) {
      const int slot = static_cast<int>(half) * kGroupSlots;
      ReadKeyHalf(*full.layout, full.pages[static_cast<std::size_t>(slot / kPageSlots)], head,
                  slot % kPageSlots, keys);
      for (std::size_t q = 0; q < queries; ++q) {
        const int w = static_cast<int>(q) / group;
        const int query_head = head * group + static_cast<int>(q) % group;
        const std::span<const float> row =
            prompt.tap->row(layer, prompt.tap->window() - window + w);
        Dot(row.subspan(static_cast<std::size_t>(query_head) * dim, dim), keys.data(), scale,
            scores.data() + (q * halves + half) * kGroupSlots);
      }
    }
    std::vector<float> sums(static_cast<std::size_t>(before));
    for (std::size_t q = 0; q < queries; ++q) {
      const int seen = before + static_cast<int>(q) / group + 1;
      AddSoftmax(
          std::span(scores).subspan(q * halves * kGroupSlots, static_cast<std::size_t>(seen)),
          sums);
    }
    for (float& sum : sums) {
      sum /= static_cast<float>(window * group);
    }
    result.push_back(AveragePool(sums, kernel_));
  }
  return result;
}

LayerSelection SnapKv::Select(const PromptView& prompt, LayerId layer, int count) const {
  const int window = std::min(window_, prompt.positions);
  const int chosen = std::max(0, count - window);
  LayerSelection selection;
  for (const std::vector<float>& scores : Scores(prompt, layer)) {
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + chosen, order.end(), [&](int a, int b) {
      const float x = scores[static_cast<std::size_t>(a)];
      const float y = scores[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    order.resize(static_cast<std::size_t>(chosen));
    std::sort(order.begin(), order.end());
    for (int i = prompt.positions - (count - chosen); i < prompt.positions; ++i) {
      order.push_back(i);
    }
    selection.push_back(std::move(order));
  }
  return selection;
}

}  // namespace vericache
