#include "sampling/round_sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "unit_support/chi_square.h"

namespace vericache {
namespace {

constexpr int kVocabulary = 3;

// Logits that depend on the position and on the token before it: a model, and a worse copy of it.
std::vector<float> Logits(int position, TokenId before, bool drafter) {
  std::vector<float> logits;
  for (int token = 0; token < kVocabulary; ++token) {
    const int mix = (position * 5 + Raw(before) * 3 + token * 7) % 11;
    const int error = drafter ? (position + 2 * token + Raw(before)) % 4 : 0;
    logits.push_back(0.25F * static_cast<float>(mix) - 0.5F * static_cast<float>(error));
  }
  return logits;
}

// Decodes `count` tokens after token 0 at position 0, in rounds of `drafts` drafts. Where
// `impatient`, a draft ends with its first token 2: how far it goes depends on what was drawn.
std::vector<TokenId> Decode(const SamplingOptions& options, int count, int drafts, bool impatient) {
  RoundSampler sampler(options);
  std::vector<TokenId> tokens = {TokenId{0}};
  while (static_cast<int>(tokens.size()) <= count) {
    const int first = static_cast<int>(tokens.size()) - 1;
    std::vector<TokenId> drafted;
    std::vector<float> rows = Logits(first, tokens.back(), false);
    for (int i = 0; i < drafts && !(impatient && i > 0 && drafted.back() == TokenId{2}); ++i) {
      const TokenId before = i == 0 ? tokens.back() : drafted.back();
      drafted.push_back(
          sampler.Draft(Logits(first + i, before, true), Position{first + i}, {tokens, drafted}));
      for (const float logit : Logits(first + i + 1, drafted.back(), false)) {
        rows.push_back(logit);
      }
    }
    for (const TokenId token : sampler.Verify(rows, Position{first}, tokens, drafted)) {
      tokens.push_back(token);
    }
  }
  return {tokens.begin() + 1, tokens.begin() + 1 + count};
}

// All sequences of four tokens against the product of the model's own probabilities: chi-square
// with 80 degrees of freedom is above 165 once in ten million times.
TEST(RoundSampler, RejectionGivesTheModelsDistributionOfSequences) {
  constexpr int kLength = 4;
  constexpr int kDraws = 60'000;
  constexpr std::size_t kSequences = 81;
  std::array<double, kSequences> expected{};
  for (std::size_t sequence = 0; sequence < kSequences; ++sequence) {
    double probability = 1.0;
    TokenId before{0};
    std::size_t rest = sequence;
    for (int position = 0; position < kLength; ++position, rest /= kVocabulary) {
      const TokenId token{static_cast<std::int32_t>(rest % kVocabulary)};
      const std::vector<float> logits = Logits(position, before, false);
      double sum = 0.0;
      for (const float logit : logits) {
        sum += std::exp(logit);
      }
      probability *= std::exp(logits[static_cast<std::size_t>(Raw(token))]) / sum;
      before = token;
    }
    expected[sequence] = probability;
  }
  for (const int drafts : {0, 1, 3, 6}) {
    for (const bool impatient : {false, true}) {
      std::array<int, kSequences> drawn{};
      for (int i = 0; i < kDraws; ++i) {
        const std::vector<TokenId> tokens =
            Decode({.temperature = 1.0, .seed = static_cast<std::uint64_t>(i), .rejection = true},
                   kLength, drafts, impatient);
        std::size_t sequence = 0;
        for (int at = kLength - 1; at >= 0; --at) {
          sequence = sequence * kVocabulary +
                     static_cast<std::size_t>(Raw(tokens[static_cast<std::size_t>(at)]));
        }
        ++drawn[sequence];
      }
      EXPECT_LT(testing::ChiSquare(drawn, expected, kDraws), 165.0)
          << drafts << " drafts" << (impatient ? ", impatient" : "");
    }
  }
}

// With shared noise the tokens are those of decoding without drafts.
RC_GTEST_PROP(RoundSampler, SharedNoiseGivesTheSameTokens, (std::uint64_t seed)) {
  const SamplingOptions options{.temperature = *rc::gen::element(0.0, 0.3, 1.0, 2.0),
                                .top_k = *rc::gen::element(0, 2),
                                .frequency_penalty = *rc::gen::element(0.0, 0.5),
                                .seed = seed};
  const int drafts = *rc::gen::inRange(0, 9);
  RC_ASSERT(Decode(options, 20, drafts, *rc::gen::arbitrary<bool>()) ==
            Decode(options, 20, 0, false));
}

// At temperature 0 there is nothing to reject.
RC_GTEST_PROP(RoundSampler, AtTemperatureZeroBothAreGreedy, (bool impatient)) {
  const int drafts = *rc::gen::inRange(0, 9);
  RC_ASSERT(Decode({.rejection = true}, 20, drafts, impatient) == Decode({}, 20, 0, false));
}

// Accepted drafts come first, then one token that is not the draft's.
RC_GTEST_PROP(RoundSampler, EmitsWhatWasAcceptedAndOneMore, (std::uint64_t seed)) {
  const SamplingOptions options{
      .temperature = 1.0, .seed = seed, .rejection = *rc::gen::arbitrary<bool>()};
  RoundSampler sampler(options);
  const std::vector<TokenId> tokens = {TokenId{0}};
  std::vector<TokenId> drafted;
  std::vector<float> rows = Logits(0, tokens.back(), false);
  for (int i = 0; i < 5; ++i) {
    drafted.push_back(sampler.Draft(Logits(i, i == 0 ? tokens.back() : drafted.back(), true),
                                    Position{i}, {tokens, drafted}));
    for (const float logit : Logits(i + 1, drafted.back(), false)) {
      rows.push_back(logit);
    }
  }
  const std::vector<TokenId> emitted = sampler.Verify(rows, Position{0}, tokens, drafted);
  RC_ASSERT(!emitted.empty() && emitted.size() <= drafted.size() + 1);
  for (std::size_t i = 0; i + 1 < emitted.size(); ++i) {
    RC_ASSERT(emitted[i] == drafted[i]);
  }
  RC_ASSERT(emitted.size() > drafted.size() || emitted.back() != drafted[emitted.size() - 1]);
}

}  // namespace
}  // namespace vericache
