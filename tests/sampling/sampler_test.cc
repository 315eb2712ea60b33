#include "sampling/sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.h"
#include "unit_support/chi_square.h"

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

// The probabilities of tokens under a chain, worked out the long way.
std::vector<double> Probabilities(const std::vector<float>& logits,
                                  const SamplingOptions& options) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return logits[i]; });
  if (options.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  }
  const auto weight = [&](std::size_t i) {
    return std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / options.temperature);
  };
  double total = 0.0;
  for (const std::size_t i : order) {
    total += weight(i);
  }
  std::vector<std::size_t> kept;
  double sum = 0.0;
  for (const std::size_t i : order) {
    if (sum < options.top_p * total) {
      kept.push_back(i);
    }
    sum += weight(i);
  }
  std::erase_if(kept, [&](std::size_t i) { return weight(i) < options.min_p * (1.0 - 1e-12); });
  std::vector<double> probabilities(logits.size());
  double left = 0.0;
  for (const std::size_t i : kept) {
    left += weight(i);
  }
  for (const std::size_t i : kept) {
    probabilities[i] = weight(i) / left;
  }
  return probabilities;
}

// Draws at many positions against the distribution: chi-square with 5 degrees of freedom at most,
// which is above 30 once in 80,000 times. Seeds are fixed, so that it is above or not, always.
TEST(Sampler, DrawsTheDistribution) {
  const std::vector<float> logits = {1.0F, 0.2F, -0.5F, 2.0F, 1.9F, -3.0F};
  constexpr int kDraws = 100'000;
  const std::vector<SamplingOptions> chains = {
      {.temperature = 1.0, .seed = 1},
      {.temperature = 0.5, .seed = 2},
      {.temperature = 3.0, .seed = 3},
      {.temperature = 1.0, .top_k = 3, .seed = 4},
      {.temperature = 1.0, .top_p = 0.8, .seed = 5},
      {.temperature = 0.8, .min_p = 0.2, .seed = 6},
      {.temperature = 1.5, .top_k = 5, .top_p = 0.9, .min_p = 0.3, .seed = 7}};
  for (const SamplingOptions& options : chains) {
    const std::vector<double> expected = Probabilities(logits, options);
    std::vector<int> drawn(logits.size());
    const Sampler sampler(options);
    for (int i = 0; i < kDraws; ++i) {
      ++drawn[static_cast<std::size_t>(Raw(sampler.Sample(logits, Position{i})))];
    }
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      if (expected[i] == 0.0) {
        EXPECT_EQ(drawn[i], 0) << "seed " << options.seed << " token " << i;
      }
    }
    EXPECT_LT(testing::ChiSquare(drawn, expected, kDraws), 30.0) << "seed " << options.seed;
  }
}

// What is drawn at one position, or with one seed, says nothing of the next: chi-square of pairs
// with 9 degrees of freedom, above 38 once in 60,000 times.
TEST(Sampler, DrawsAreIndependent) {
  const std::vector<float> logits(4, 0.0F);
  constexpr int kDraws = 40'000;
  for (const bool seeds : {false, true}) {
    std::vector<int> pairs(16);
    for (int i = 0; i < kDraws; ++i) {
      const auto draw = [&](int which) {
        const Sampler sampler(
            {.temperature = 1.0, .seed = seeds ? static_cast<std::uint64_t>(which) : 9U});
        return Raw(sampler.Sample(logits, Position{seeds ? 5 : which}));
      };
      ++pairs[static_cast<std::size_t>(draw(i) * 4 + draw(i + 1))];
    }
    const std::vector<double> expected(pairs.size(), 1.0 / 16.0);
    EXPECT_LT(testing::ChiSquare(pairs, expected, kDraws), 45.0) << (seeds ? "seeds" : "positions");
  }
}

// Only candidates are picked, and the same one again; nothing depends on where the logits lie.
RC_GTEST_PROP(Sampler, PicksACandidateAndTheSameAgain, (std::uint64_t seed)) {
  const auto numbers =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(-400, 400)));
  std::vector<float> logits;
  for (const int number : numbers) {
    logits.push_back(static_cast<float>(number) / 8.0F);
  }
  const SamplingOptions options{.temperature = *rc::gen::element(0.1, 0.7, 1.0, 5.0),
                                .top_k = *rc::gen::element(0, 1, 2, 5),
                                .top_p = *rc::gen::element(1.0, 0.9, 0.5, 0.01),
                                .min_p = *rc::gen::element(0.0, 0.1, 1.0),
                                .seed = seed};
  const Position position{*rc::gen::inRange(0, 100'000)};
  const TokenId token = Sampler(options).Sample(logits, position);
  RC_ASSERT(Probabilities(logits, options)[static_cast<std::size_t>(Raw(token))] > 0.0);
  const std::vector<float> copy = logits;
  RC_ASSERT(Sampler(options).Sample(copy, position) == token);
}

TEST(Sampler, WithOneCandidateItIsGreedy) {
  const std::vector<float> logits = {1.0F, 4.0F, 3.9F, -2.0F};
  for (int i = 0; i < 200; ++i) {
    for (const SamplingOptions& options : {SamplingOptions{.temperature = 2.0, .top_k = 1},
                                           SamplingOptions{.temperature = 2.0, .top_p = 0.01},
                                           SamplingOptions{.temperature = 2.0, .min_p = 1.0},
                                           SamplingOptions{.temperature = 0.0, .seed = 7}}) {
      EXPECT_EQ(Sampler(options).Sample(logits, Position{i}), TokenId{1});
    }
  }
}

TEST(Sampler, PenaltiesCountWhatWasEmittedAndDrafted) {
  const std::vector<float> logits = {1.0F, 0.9F, 0.6F, -9.0F};
  const std::vector<TokenId> verified = {TokenId{0}};
  const std::vector<TokenId> drafted = {TokenId{1}, TokenId{1}};
  const auto sample = [&](double presence, double frequency, bool with_drafts) {
    const Sampler sampler({.presence_penalty = presence, .frequency_penalty = frequency});
    return Raw(sampler.Sample(logits, Position{3},
                              {verified, with_drafts ? std::span(drafted) : std::span<TokenId>()}));
  };
  EXPECT_EQ(sample(0.0, 0.0, true), 0);
  EXPECT_EQ(sample(0.2, 0.0, false), 1);
  EXPECT_EQ(sample(0.35, 0.0, true), 0);   // 0.65, 0.55, 0.6
  EXPECT_EQ(sample(0.5, 0.0, true), 2);    // 0.5, 0.4, 0.6
  EXPECT_EQ(sample(0.0, 0.3, true), 0);    // 0.7, 0.3, 0.6
  EXPECT_EQ(sample(0.0, 0.45, true), 2);   // 0.55, 0.0, 0.6
  EXPECT_EQ(sample(0.0, -0.1, true), 0);   // 1.1, 1.1, 0.6: the lower token of equals
  EXPECT_EQ(sample(0.0, -0.11, true), 1);  // 1.11, 1.12
}

TEST(Sampler, TakesNansAndInfinities) {
  const SamplingOptions options{.temperature = 1.0, .top_p = 0.9};
  EXPECT_EQ(Sampler(options).Sample(std::vector<float>{kNan, -5.0F, kNan}, Position{0}),
            TokenId{1});
  EXPECT_EQ(Sampler(options).Sample(std::vector<float>{0.0F, kInfinity, 1.0F}, Position{0}),
            TokenId{1});
  EXPECT_EQ(Sampler(options).Sample(std::vector<float>{kNan, kNan}, Position{0}), TokenId{0});
  EXPECT_EQ(Sampler(options).Sample(std::vector<float>{-kInfinity, 2.0F}, Position{0}), TokenId{1});
}

TEST(Sampler, RefusesWhatIsOutOfRange) {
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = -0.1}, SamplingOptions{.temperature = kNan},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0.0}, SamplingOptions{.top_p = 1.1},
        SamplingOptions{.min_p = -0.1}, SamplingOptions{.presence_penalty = 2.1},
        SamplingOptions{.frequency_penalty = kNan}}) {
    EXPECT_THROW(ValidateSampling(options), UserError);
  }
  EXPECT_NO_THROW(ValidateSampling({}));
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
