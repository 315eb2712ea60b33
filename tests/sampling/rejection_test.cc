#include "sampling/rejection.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "unit_support/chi_square.h"

namespace vericache {
namespace {

using testing::ChiSquare;

// Of as many tokens as there are probabilities; those of 0 are left out.
Distribution Of(const std::vector<double>& probabilities) {
  Distribution distribution;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] > 0.0) {
      distribution.push_back({TokenId{static_cast<std::int32_t>(i)}, probabilities[i]});
    }
  }
  return distribution;
}

struct Pair {
  std::vector<double> verifier;
  std::vector<double> drafter;
};

// Made by hand: alike, apart, the one within the other, and without a common token.
const std::vector<Pair>& Pairs() {
  static const std::vector<Pair> pairs = {
      {{0.5, 0.3, 0.2, 0.0}, {0.5, 0.3, 0.2, 0.0}},
      {{0.1, 0.2, 0.3, 0.4}, {0.4, 0.3, 0.2, 0.1}},
      {{0.25, 0.25, 0.25, 0.25}, {0.0, 0.0, 1.0, 0.0}},
      {{0.0, 0.0, 1.0, 0.0}, {0.25, 0.25, 0.25, 0.25}},
      {{0.6, 0.4, 0.0, 0.0}, {0.0, 0.0, 0.3, 0.7}},
  };
  return pairs;
}

// What is emitted has the verifier's distribution, and as much is accepted as the two have in
// common: the rule of both papers. Chi-square with 3 degrees of freedom is above 30 once in 700,000
// times; the seed is fixed, so that it is above or not, always.
TEST(Rejection, EmitsTheVerifiersDistribution) {
  constexpr int kDraws = 100'000;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (const Pair& pair : Pairs()) {
    const Distribution verifier = Of(pair.verifier);
    const Distribution drafter = Of(pair.drafter);
    double common = 0.0;
    for (std::size_t i = 0; i < pair.verifier.size(); ++i) {
      common += std::min(pair.verifier[i], pair.drafter[i]);
    }
    std::vector<int> emitted(pair.verifier.size());
    int accepted = 0;
    for (int i = 0; i < kDraws; ++i) {
      const TokenId drafted = Pick(drafter, uniform(random));
      const double accept = uniform(random);
      const TokenId token = PickVerified(verifier, drafter, drafted, accept, uniform(random));
      ++emitted[static_cast<std::size_t>(Raw(token))];
      accepted += token == drafted ? 1 : 0;
    }
    EXPECT_LT(ChiSquare(emitted, pair.verifier, kDraws), 30.0) << "first " << pair.verifier[0];
    const double deviation = std::sqrt(common * (1.0 - common) / kDraws);
    EXPECT_NEAR(static_cast<double>(accepted) / kDraws, common, 5.0 * deviation + 1e-12);
  }
}

TEST(Rejection, PicksByTheCumulativeDistribution) {
  const Distribution distribution = Of({0.25, 0.0, 0.5, 0.25});
  EXPECT_EQ(Pick(distribution, 0.001), TokenId{0});
  EXPECT_EQ(Pick(distribution, 0.249), TokenId{0});
  EXPECT_EQ(Pick(distribution, 0.251), TokenId{2});
  EXPECT_EQ(Pick(distribution, 0.749), TokenId{2});
  EXPECT_EQ(Pick(distribution, 0.751), TokenId{3});
  EXPECT_EQ(Pick(Of({0.5, 0.4999}), 0.99999), TokenId{1});
}

// The drafter's own token is kept always where both are the same, and never where the verifier
// cannot emit it.
RC_GTEST_PROP(Rejection, KeepsWhatIsSureAndNothingElse, ()) {
  const auto logits_of = [] {
    std::vector<float> logits;
    for (const int number : *rc::gen::container<std::vector<int>>(7, rc::gen::inRange(-60, 60))) {
      logits.push_back(static_cast<float>(number) / 8.0F);
    }
    return logits;
  };
  const SamplingOptions options{.temperature = *rc::gen::element(0.2, 1.0, 3.0),
                                .top_k = *rc::gen::element(0, 1, 3),
                                .top_p = *rc::gen::element(1.0, 0.7)};
  const Distribution verifier = DistributionOf(logits_of(), options, {}, 40.0);
  const Distribution drafter = DistributionOf(logits_of(), options, {}, 12.0);
  const auto uniform = [] { return (*rc::gen::inRange(0, 1 << 20) + 0.5) / (1 << 20); };
  const TokenId drafted = Pick(drafter, uniform());
  const double accept = uniform();
  const double pick = uniform();
  const TokenId token = PickVerified(verifier, drafter, drafted, accept, pick);
  RC_ASSERT(ProbabilityOf(verifier, token) > 0.0);
  RC_ASSERT(PickVerified(drafter, drafter, drafted, accept, pick) == drafted);
  double sum = 0.0;
  for (const TokenProbability& each : verifier) {
    sum += each.probability;
  }
  RC_ASSERT(std::abs(sum - 1.0) < 1e-12);
}

TEST(Rejection, WithoutChanceTheDistributionIsOneToken) {
  EXPECT_EQ(DistributionOf(std::vector{1.0F, 3.0F, 3.0F}, {}, {}, 40.0),
            (Distribution{{TokenId{1}, 1.0}}));
  EXPECT_EQ(DistributionOf(std::vector{1.0F, INFINITY}, {.temperature = 1.0}, {}, 40.0),
            (Distribution{{TokenId{1}, 1.0}}));
}

}  // namespace
}  // namespace vericache
