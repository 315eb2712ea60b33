#include "compressor/refresh.h"

#include <algorithm>
#include <span>
#include <vector>

#include "compressor/window_attention.h"

namespace vericache {
namespace {

constexpr int kKernel = 5;  // neighbours over which attention is averaged, as SnapKV does

// 1 / the sum of the scores of positions that are not surely kept.
float Scale(std::span<const float> scores) {
  float sum = 0.0F;
  for (const float score : scores) {
    sum += score < kSurelyKept ? score : 0.0F;
  }
  return sum > 0.0F ? 1.0F / sum : 0.0F;
}

std::vector<float> Blend(std::span<const float> before, std::span<const float> attention,
                         float blend) {
  const float now_scale = Scale(attention);
  const float before_scale = Scale(before);
  std::vector<float> blended(attention.size());
  for (std::size_t i = 0; i < blended.size(); ++i) {
    const float seen = attention[i] * now_scale;
    // What was surely kept has no worth that could be compared.
    const float worth = before[i] < kSurelyKept ? before[i] * before_scale : seen;
    blended[i] = blend * seen + (1.0F - blend) * worth;
  }
  return blended;
}

}  // namespace

KvCache Refresh(const Compressor& compressor, RefreshState& state, const PromptView& now,
                double keep, PagePool& pool) {
  const int prompt = state.prompt;
  const int more = now.positions - prompt;
  const auto count_of = [&](LayerId layer) {
    return KeptPositions(prompt, compressor.recipe(layer).keep.value_or(keep)) + more;
  };
  if (compressor.scorer->network()) {
    const auto predicted = [&](LayerId layer, int count) {
      LayerScores scores = compressor.scorer->Scores(now, layer);
      KeepRecent(scores, compressor.scorer->recent(count));
      return scores;
    };
    return CompressBy(compressor, now.full, {.count = count_of, .scores = predicted}, pool);
  }
  const bool accumulates = compressor.scorer->accumulates();
  const auto blend = static_cast<float>(compressor.refresh.blend);
  const int window = compressor.needs().verified_window;
  const int first =
      std::max({now.taps->queries->first(), now.positions - window, accumulates ? state.seen : 0});
  const int rows = now.positions - first;
  const auto scores_of = [&](LayerId layer, int count) {
    LayerScores result = WindowAttention(now, layer, first, rows, prompt);
    LayerScores& before = state.scores[static_cast<std::size_t>(Raw(layer))];
    for (std::size_t head = 0; head < result.size(); ++head) {
      std::vector<float>& scores = result[head];
      if (accumulates) {
        for (std::size_t i = 0; i < scores.size(); ++i) {
          before[head][i] += scores[i] * static_cast<float>(rows);
        }
        scores = before[head];
      } else {
        scores = Blend(before[head], AveragePool(scores, kKernel), blend);
      }
      scores.resize(static_cast<std::size_t>(now.positions));
    }
    KeepRecent(result, std::max(more, compressor.scorer->recent(count)));
    return result;
  };
  KvCache cache = CompressBy(compressor, now.full, {.count = count_of, .scores = scores_of}, pool);
  state.seen = now.positions;
  return cache;
}

}  // namespace vericache
