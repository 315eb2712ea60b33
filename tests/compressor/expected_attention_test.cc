// Expected attention against a plain float64 version of kvpress's ExpectedAttentionPress, written
// from its formulas.
#include "compressor/expected_attention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr int kDim = 16;

ExpectedAttention Make(const std::string& text) {
  MethodOptions options("expectedattention", text);
  return ExpectedAttention(options);
}

struct Prompt {
  explicit Prompt(RandomData& random)
      : pool(Bytes{1U << 22U}),
        geometry{.layers = 1, .kv_heads = 1 + random.Below(3), .head_dim = kDim},
        heads(geometry.kv_heads * (1 + random.Below(3))),
        positions(1 + random.Below(120)),
        full(pool, PageKind::kTransient, geometry, {NumberFormat::kF16, NumberFormat::kF16}),
        taps({.query_statistics = true}, geometry, heads, positions, 1),
        rotation(random.Floats(kDim * kDim, 0.3F)) {
    testing::FillTail(full, positions, random);
    const std::vector<float> queries = random.Floats(Size(positions * heads * kDim), 1.5F);
    taps.statistics->Add(LayerId{0}, 0, positions, queries.data(), 0, 1);
  }
  PromptView view() const {
    return {.full = full,
            .taps = &taps,
            .positions = positions,
            .heads = heads,
            .future_rotation = rotation};
  }

  PagePool pool;
  CacheGeometry geometry;
  int heads;
  int positions;
  KvCache full;
  Taps taps;
  std::vector<float> rotation;
};

// R mean k / sqrt(d) + k R covariance R' k / 2d.
double Exponent(const Prompt& prompt, int head, const std::vector<float>& key) {
  const std::vector<float> mean = prompt.taps.statistics->Mean(LayerId{0}, head);
  const std::vector<float> covariance = prompt.taps.statistics->Covariance(LayerId{0}, head);
  std::vector<double> turned(kDim);  // R' k
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      turned[Size(j)] += static_cast<double>(prompt.rotation[Size(i * kDim + j)]) *
                         static_cast<double>(key[Size(i)]);
    }
  }
  double exponent = 0.0;
  for (int i = 0; i < kDim; ++i) {
    exponent += turned[Size(i)] * static_cast<double>(mean[Size(i)]) / std::sqrt(kDim);
    for (int j = 0; j < kDim; ++j) {
      exponent += turned[Size(i)] * static_cast<double>(covariance[Size(i * kDim + j)]) *
                  turned[Size(j)] / (2 * kDim);
    }
  }
  return exponent;
}

RC_GTEST_PROP(ExpectedAttention, ScoresAreThoseOfThePlainFormula, (std::uint32_t seed)) {
  RandomData random(seed);
  const Prompt prompt(random);
  const int group = prompt.heads / prompt.geometry.kv_heads;
  const int sinks = std::min(4, prompt.positions);
  const LayerScores scores = Make("epsilon=0.01").Scores(prompt.view(), LayerId{0});
  RC_ASSERT(scores.size() == Size(prompt.geometry.kv_heads));
  for (int head = 0; head < prompt.geometry.kv_heads; ++head) {
    std::vector<double> expected(Size(prompt.positions));
    std::vector<float> key(kDim);
    std::vector<float> value(kDim);
    for (int g = 0; g < group; ++g) {
      std::vector<double> weights(Size(prompt.positions));
      for (int i = sinks; i < prompt.positions; ++i) {
        prompt.full.ReadTail(LayerId{0}, i, head, key, value);
        weights[Size(i)] = std::exp(Exponent(prompt, head * group + g, key));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (int i = sinks; i < prompt.positions; ++i) {
        expected[Size(i)] += weights[Size(i)] / sum / group;
      }
    }
    RC_ASSERT(scores[Size(head)].size() == Size(prompt.positions));
    for (int i = 0; i < prompt.positions; ++i) {
      const float score = scores[Size(head)][Size(i)];
      if (i < sinks) {
        RC_ASSERT(score >= kSurelyKept);
        continue;
      }
      prompt.full.ReadTail(LayerId{0}, i, head, key, value);
      const double length =
          std::sqrt(std::inner_product(value.begin(), value.end(), value.begin(), 0.0));
      const double want = (expected[Size(i)] + 0.01) * length;
      RC_ASSERT(std::abs(static_cast<double>(score) - want) <= 1e-4 * want);
    }
  }
}

RC_GTEST_PROP(ExpectedAttention, KeepsTheSinksFirstThenTheRecent, (std::uint32_t seed)) {
  RandomData random(seed);
  const Prompt prompt(random);
  const ExpectedAttention scorer = Make("recent=3");
  LayerScores scores = scorer.Scores(prompt.view(), LayerId{0});
  KeepRecent(scores, scorer.recent(20));
  const int sure = std::min(prompt.positions, 4 + 3);
  for (int count = 1; count <= sure; ++count) {
    std::vector<int> expected(Size(count));
    for (int i = 0; i < count; ++i) {
      expected[Size(i)] = i < 4 ? i : prompt.positions - count + i;
    }
    for (const std::vector<int>& kept : Select(scores, count)) {
      RC_ASSERT(kept == expected);
    }
  }
}

TEST(ExpectedAttention, LooksAtTheNext512PositionsAsKvpressDoes) {
  EXPECT_EQ(Make("").future_positions(), 512);
  EXPECT_TRUE(Make("").needs().query_statistics);
  EXPECT_EQ(Make("future=3").future_positions(), 3);
}

}  // namespace
}  // namespace vericache
