#include "sampling/sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
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

RC_GTEST_PROP(Margin, IsTheDistanceToTheLargestOther, ()) {
  const auto numbers =
      *rc::gen::suchThat(rc::gen::container<std::vector<int>>(rc::gen::inRange(-1000, 1000)),
                         [](const std::vector<int>& each) { return each.size() >= 2; });
  const std::vector<float> logits(numbers.begin(), numbers.end());
  const auto token = *rc::gen::inRange<std::size_t>(0, logits.size());
  int most = -1001;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    most = i == token ? most : std::max(most, numbers[i]);
  }
  RC_ASSERT(Margin(logits, TokenId{static_cast<std::int32_t>(token)}) ==
            static_cast<float>(numbers[token] - most));
}

}  // namespace
}  // namespace vericache
