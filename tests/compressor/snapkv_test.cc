// SnapKV against a plain float64 version of kvpress's SnapKVPress (compute_window_attention and
// score), written from the formulas.
#include "compressor/snapkv.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

SnapKv DefaultSnapKv() {
  MethodOptions none("snapkv", "");
  return SnapKv(none);
}

// A prompt with a random full cache and the queries of its last positions.
struct Prompt {
  Prompt(int positions_in, RandomData& random)
      : pool(Bytes{1U << 24U}),
        geometry{.layers = 2, .kv_heads = 1 + random.Below(3), .head_dim = 16},
        heads(geometry.kv_heads * (1 + random.Below(3))),
        positions(positions_in),
        window(std::min(SnapKv::kWindow, positions)),
        full(pool, PageKind::kTransient, geometry, {NumberFormat::kF16, NumberFormat::kF16}),
        taps({.query_window = window}, geometry, heads, positions, 1) {
    testing::FillTail(full, positions, random);
    for (int layer = 0; layer < geometry.layers; ++layer) {
      for (int w = 0; w < window; ++w) {
        // Large queries make peaked attention.
        const auto queries = random.Floats(Size(heads * geometry.head_dim), 3.0F);
        std::ranges::copy(queries,
                          taps.queries->at(LayerId{layer}, positions - window + w).begin());
      }
    }
  }
  PromptView view() const {
    return {.full = full, .taps = &taps, .positions = positions, .heads = heads};
  }

  PagePool pool;
  CacheGeometry geometry;
  int heads;
  int positions;
  int window;
  KvCache full;
  Taps taps;
};

// attention of query row w of `head` to all positions, causal.
std::vector<double> Attention(const Prompt& prompt, LayerId layer, int head, int w) {
  const int dim = prompt.geometry.head_dim;
  const int kv_head = head / (prompt.heads / prompt.geometry.kv_heads);
  const auto query = std::as_const(*prompt.taps.queries)
                         .at(layer, prompt.positions - prompt.window + w)
                         .subspan(Size(head * dim), Size(dim));
  std::vector<double> attention(Size(prompt.positions - prompt.window + w + 1));
  std::vector<float> key(Size(dim));
  std::vector<float> value(Size(dim));
  double sum = 0.0;
  for (std::size_t i = 0; i < attention.size(); ++i) {
    prompt.full.ReadTail(layer, static_cast<int>(i), kv_head, key, value);
    attention[i] =
        std::exp(std::inner_product(query.begin(), query.end(), key.begin(), 0.0, std::plus<>(),
                                    [](float a, float b) {
                                      return static_cast<double>(a) * static_cast<double>(b);
                                    }) /
                 std::sqrt(static_cast<double>(dim)));
    sum += attention[i];
  }
  for (double& number : attention) {
    number /= sum;
  }
  return attention;
}

// Mean over the window's queries, average pooling with zero padding (count_include_pad), mean over
// the query heads of a KV head.
std::vector<double> NaiveScores(const Prompt& prompt, LayerId layer, int kv_head) {
  const int before = prompt.positions - prompt.window;
  const int group = prompt.heads / prompt.geometry.kv_heads;
  std::vector<double> scores(Size(before));
  for (int g = 0; g < group; ++g) {
    std::vector<double> mean(Size(before));
    for (int w = 0; w < prompt.window; ++w) {
      const auto attention = Attention(prompt, layer, kv_head * group + g, w);
      for (std::size_t i = 0; i < mean.size(); ++i) {
        mean[i] += attention[i] / prompt.window;
      }
    }
    for (int i = 0; i < before; ++i) {
      for (int j = i - 2; j <= i + 2; ++j) {
        scores[Size(i)] += j >= 0 && j < before ? mean[Size(j)] / 5.0 / group : 0.0;
      }
    }
  }
  return scores;
}

RC_GTEST_PROP(SnapKv, ScoresAreThoseOfThePlainFormula, (std::uint32_t seed)) {
  RandomData random(seed);
  const Prompt prompt(1 + random.Below(200), random);
  for (int layer = 0; layer < prompt.geometry.layers; ++layer) {
    const auto scores = DefaultSnapKv().Scores(prompt.view(), LayerId{layer});
    RC_ASSERT(scores.size() == Size(prompt.geometry.kv_heads));
    for (int head = 0; head < prompt.geometry.kv_heads; ++head) {
      const auto expected = NaiveScores(prompt, LayerId{layer}, head);
      RC_ASSERT(scores[Size(head)].size() == Size(prompt.positions));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double error = std::abs(static_cast<double>(scores[Size(head)][i]) - expected[i]);
        RC_ASSERT(error <= 2e-5 * expected[i] + 1e-9);
      }
    }
  }
}

RC_GTEST_PROP(SnapKv, KeepsTheBestPositionsAndTheWindow, (std::uint32_t seed)) {
  RandomData random(seed);
  const Prompt prompt(1 + random.Below(200), random);
  const int count = 1 + random.Below(prompt.positions);
  const LayerSelection selection = Select(DefaultSnapKv().Scores(prompt.view(), LayerId{1}), count);
  RC_ASSERT(selection.size() == Size(prompt.geometry.kv_heads));
  const int chosen = std::max(0, count - prompt.window);
  for (int head = 0; head < prompt.geometry.kv_heads; ++head) {
    const std::vector<int>& kept = selection[Size(head)];
    RC_ASSERT(kept.size() == Size(count));
    RC_ASSERT(std::adjacent_find(kept.begin(), kept.end(), std::greater_equal<>()) == kept.end());
    // The most recent positions, the whole window where there is room.
    for (int i = chosen; i < count; ++i) {
      RC_ASSERT(kept[Size(i)] == prompt.positions - count + i);
    }
    // No position that was dropped is better, beyond float error, than one that was kept.
    const auto scores = NaiveScores(prompt, LayerId{1}, head);
    double worst = 1.0;
    for (int i = 0; i < chosen; ++i) {
      RC_ASSERT(kept[Size(i)] >= 0);
      RC_ASSERT(kept[Size(i)] < prompt.positions - prompt.window);
      worst = std::min(worst, scores[Size(kept[Size(i)])]);
    }
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (chosen > 0 && !std::binary_search(kept.begin(), kept.end(), static_cast<int>(i))) {
        RC_ASSERT(scores[i] <= worst * (1.0 + 4e-5) + 1e-9);
      }
    }
  }
}

TEST(SnapKv, LooksAtTheLastThirtyTwoQueries) {
  EXPECT_EQ(DefaultSnapKv().needs().query_window, 32);
}

TEST(SnapKv, AmongEqualScoresTheEarlierPositionsAreKept) {
  RandomData random(1);
  Prompt prompt(100, random);
  // Queries of zeros attend to everything alike; pooling lowers the two positions at either end.
  for (int w = 0; w < prompt.window; ++w) {
    std::ranges::fill(prompt.taps.queries->at(LayerId{0}, prompt.positions - prompt.window + w),
                      0.0F);
  }
  const LayerSelection selection =
      Select(DefaultSnapKv().Scores(prompt.view(), LayerId{0}), 32 + 4);
  for (const std::vector<int>& kept : selection) {
    EXPECT_EQ(std::vector<int>(kept.begin(), kept.begin() + 4), (std::vector<int>{2, 3, 4, 5}));
  }
}

TEST(SnapKv, KeepsAPromptOfOneTokenAndOneShorterThanItsWindow) {
  RandomData random(2);
  for (const int positions : {1, 2, 31, 32, 33}) {
    const Prompt prompt(positions, random);
    std::vector<int> all(Size(positions));
    std::iota(all.begin(), all.end(), 0);
    const LayerScores scores = DefaultSnapKv().Scores(prompt.view(), LayerId{0});
    for (const std::vector<int>& kept : Select(scores, positions)) {
      EXPECT_EQ(kept, all);
    }
    for (const std::vector<int>& kept : Select(scores, 1)) {
      EXPECT_EQ(kept, std::vector<int>{positions - 1});
    }
  }
}

}  // namespace
}  // namespace vericache
