#include "sampling/sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace vericache {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TokenId Greedy(const std::vector<float>& logits) { return Sampler().Sample(logits, Position{0}); }

TEST(GreedySampler, PicksTheLargestLogit) {
  EXPECT_EQ(Greedy({-3.0F, 2.0F, 1.0F}), TokenId{1});
  EXPECT_EQ(Greedy({5.0F}), TokenId{0});
  EXPECT_EQ(Greedy({-2.0F, -1.0F, -3.0F}), TokenId{1});
  EXPECT_EQ(Greedy({0.0F, 1.0F, kInfinity}), TokenId{2});
}

TEST(GreedySampler, PicksTheLowestTokenAmongEquals) {
  EXPECT_EQ(Greedy({1.0F, 4.0F, 4.0F, 0.0F, 4.0F}), TokenId{1});
  EXPECT_EQ(Greedy({0.0F, -0.0F}), TokenId{0});
  EXPECT_EQ(Greedy({-0.0F, 0.0F}), TokenId{0});
}

TEST(GreedySampler, TakesNanForTheSmallest) {
  EXPECT_EQ(Greedy({kNan, -5.0F, kNan}), TokenId{1});
  EXPECT_EQ(Greedy({-5.0F, kNan, -4.0F}), TokenId{2});
}

TEST(GreedySampler, PicksTheFirstTokenWhereNoneIsBetter) {
  EXPECT_EQ(Greedy({-kInfinity, -kInfinity}), TokenId{0});
  EXPECT_EQ(Greedy({kNan, kNan}), TokenId{0});
}

RC_GTEST_PROP(GreedySampler, AgreesWithTheDefinition, (std::vector<std::int8_t> small)) {
  RC_PRE(!small.empty());
  // Few different numbers, hence many ties; -128 stands for NaN.
  std::vector<float> logits;
  for (const std::int8_t number : small) {
    logits.push_back(number == -128 ? kNan : static_cast<float>(number % 4));
  }
  const auto token = static_cast<std::size_t>(Raw(Greedy(logits)));
  RC_ASSERT(token < logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    RC_ASSERT(std::isnan(logits[i]) || logits[i] <= logits[token]);
    RC_ASSERT(i >= token || std::isnan(logits[i]) || logits[i] < logits[token]);
  }
}

RC_GTEST_PROP(GreedySampler, DoesNotLookAtThePosition, (std::vector<float> logits, int position)) {
  RC_PRE(!logits.empty());
  RC_ASSERT(Sampler().Sample(logits, Position{position}) == Greedy(logits));
}

}  // namespace
}  // namespace vericache
