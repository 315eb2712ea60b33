#include "scheduler/draft_length.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace vericache {
namespace {

// In (0, 1).
double AnyRate() { return *rc::gen::inRange(1, 1000) / 1000.0; }

// The accepted tokens of a round of `drafted`, where each is accepted with the chance `rate`.
int AnyAccepted(double rate, int drafted, std::mt19937& random) {
  std::bernoulli_distribution accepts(rate);
  int accepted = 0;
  while (accepted < drafted && accepts(random)) {
    ++accepted;
  }
  return accepted;
}

// The verify's own token, and draft i where all up to it are accepted.
double SumOfExpectedTokens(double rate, int draft_length) {
  double sum = 0.0;
  double all_accepted = 1.0;
  for (int i = 0; i <= draft_length; ++i) {
    sum += all_accepted;
    all_accepted *= rate;
  }
  return sum;
}

RC_GTEST_PROP(ExpectedTokens, IsTheSumOfTheChancesOfEach, ()) {
  const double rate = AnyRate();
  const auto draft_length = *rc::gen::inRange(0, 200);
  const double sum = SumOfExpectedTokens(rate, draft_length);
  RC_ASSERT(std::abs(ExpectedTokens(rate, draft_length) - sum) < 1e-9 * sum);
}

TEST(ExpectedTokens, IsWhatRoundsEmitOnAverage) {
  std::mt19937 random(7);
  constexpr int kRounds = 200000;
  double emitted = 0.0;
  for (int i = 0; i < kRounds; ++i) {
    emitted += AnyAccepted(0.9, 12, random) + 1;
  }
  EXPECT_NEAR(emitted / kRounds, ExpectedTokens(0.9, 12), 0.05);
}

RC_GTEST_PROP(BestDraftLength, IsWhatTryingAllFinds, ()) {
  const double rate = AnyRate();
  const RoundCost cost{.verify = *rc::gen::inRange(10, 200) / 10.0,
                       .reload = *rc::gen::inRange(0, 600) / 10.0};
  const auto most = *rc::gen::inRange(1, 80);
  const auto speed = [&](int x) {
    return SumOfExpectedTokens(rate, x) / std::max(x + cost.verify, cost.reload);
  };
  const int best = BestDraftLength(rate, cost, most);
  RC_ASSERT(best >= 1);
  RC_ASSERT(best <= most);
  for (int x = 1; x <= most; ++x) {
    RC_ASSERT(speed(x) <= speed(best) * (1.0 + 1e-9));
  }
}

// While the link sets the time of a round, one more draft costs nothing.
RC_GTEST_PROP(BestDraftLength, FillsTheTimeThatTheLinkNeeds, ()) {
  const auto most = *rc::gen::inRange(1, 40);
  const auto reload = *rc::gen::inRange(2, 60);
  const int best = BestDraftLength(*rc::gen::inRange(500, 990) / 1000.0,
                                   {.verify = 1.0, .reload = reload * 1.0}, most);
  RC_ASSERT(best >= std::min(reload - 1, most));
}

TEST(BestDraftLength, GrowsWithTheRate) {
  int before = 0;
  for (const double rate : {0.1, 0.5, 0.8, 0.9, 0.95, 0.99}) {
    const int best = BestDraftLength(rate, {.verify = 2.0}, 64);
    EXPECT_GE(best, before);
    before = best;
  }
  EXPECT_EQ(BestDraftLength(0.1, {.verify = 1.0}, 64), 1);
  EXPECT_GT(before, 10);
}

TEST(BestDraftLength, IsTheSmallerOfEquallyGoodOnes) {
  // Both emit almost one token for each iteration, but the rate is too small to tell them apart.
  EXPECT_EQ(BestDraftLength(1e-300, {.verify = 1.0, .reload = 50.0}, 20), 1);
}

RC_GTEST_PROP(AcceptanceEstimate, StaysBetweenZeroAndOne, ()) {
  AcceptanceEstimate estimate;
  const auto rounds = *rc::gen::inRange(0, 500);
  const auto kind = *rc::gen::inRange(0, 3);
  std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
  for (int i = 0; i < rounds; ++i) {
    const auto drafted = static_cast<int>(random() % 100);
    const int accepted[] = {0, drafted,
                            static_cast<int>(random() % static_cast<unsigned>(drafted + 1))};
    estimate.Observe(drafted, accepted[kind]);
    RC_ASSERT(estimate.rate() > 0.0);
    RC_ASSERT(estimate.rate() < 1.0);
  }
}

TEST(AcceptanceEstimate, StartsHighAndUnsure) {
  AcceptanceEstimate estimate;
  EXPECT_GT(estimate.rate(), 0.9);
  estimate.Observe(16, 0);
  estimate.Observe(16, 0);
  EXPECT_LT(estimate.rate(), 0.8);
}

TEST(AcceptanceEstimate, ARoundWithoutDraftsSaysNothing) {
  AcceptanceEstimate estimate;
  const double before = estimate.rate();
  estimate.Observe(0, 0);
  EXPECT_EQ(estimate.rate(), before);
}

// The average of many looks at it: each one remembers a few dozen tokens only.
double AverageEstimate(AcceptanceEstimate& estimate, double rate, int drafted,
                       std::mt19937& random) {
  constexpr int kRounds = 4000;
  double sum = 0.0;
  for (int i = 0; i < kRounds; ++i) {
    estimate.Observe(drafted, AnyAccepted(rate, drafted, random));
    sum += estimate.rate();
  }
  return sum / kRounds;
}

TEST(AcceptanceEstimate, ConvergesToTheTrueRate) {
  std::mt19937 random(3);
  for (const double rate : {0.2, 0.5, 0.8, 0.95}) {
    for (const int drafted : {1, 4, 16, 64}) {
      AcceptanceEstimate estimate;
      EXPECT_NEAR(AverageEstimate(estimate, rate, drafted, random), rate, 0.03)
          << "drafts of " << drafted;
    }
  }
}

TEST(AcceptanceEstimate, FollowsTheText) {
  std::mt19937 random(5);
  AcceptanceEstimate estimate;
  for (const double rate : {0.95, 0.3, 0.9}) {
    for (int i = 0; i < 200; ++i) {
      estimate.Observe(8, AnyAccepted(rate, 8, random));
    }
    EXPECT_NEAR(estimate.rate(), rate, 0.15);
  }
}

}  // namespace
}  // namespace vericache
