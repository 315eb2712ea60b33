// What an evaluation says of a compressed cache is what the engine's rounds come to.
#include "evaluation/draft_quality.h"

#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr int kTokens = 80;

TEST(DraftEvaluation, RoundsAreThoseOfTheEngine) {
  const Model& model = LoadTiny({});
  Transformer transformer(model, 1);
  const std::vector<TokenId> tokens = RandomTokens(500, 320, 5);
  DraftEvaluation evaluation(transformer, tokens, {.new_tokens = kTokens, .query_window = 32});
  const Prompt prompt{.id = "0", .tokens = tokens, .max_tokens = kTokens};
  EXPECT_EQ(evaluation.continuation(), RunFull(model, {prompt})[0].tokens);
  bool some = false;
  for (const char* name : {"none", "streamingllm", "snapkv", "kivi2", "snapkv+kivi4"}) {
    for (const double keep : {0.5, 0.1}) {
      const std::array<int, 3> draft_lengths = {5, 1, 12};
      const DraftQuality quality = evaluation.Judge(MakeCompressor(name), keep, draft_lengths);
      for (const RoundQuality& rounds : quality.rounds) {
        const Result result =
            RunEngine(model, VeriCacheOptions(name, keep, rounds.draft_length), {prompt})[0];
        // Its last round is shorter, and counted.
        EXPECT_LE(rounds.rounds, result.rounds) << name;
        EXPECT_GE(rounds.rounds + 1, result.rounds) << name;
        EXPECT_LE(rounds.accepted, result.accepted_tokens) << name;
        EXPECT_GE(rounds.accepted + rounds.draft_length, result.accepted_tokens) << name;
        EXPECT_EQ(quality.compressed <= result.compressed_cache, true);
      }
      some = some || (quality.rounds[0].accepted > 0 &&
                      *quality.rounds[0].acceptance_length() < draft_lengths[0]);
    }
  }
  EXPECT_TRUE(some) << "no case where some drafts are accepted and some not";
}

TEST(DraftEvaluation, ACopyOfTheFullCacheAgrees) {
  const Model& model = LoadTiny({});
  Transformer transformer(model, 1);
  DraftEvaluation evaluation(transformer, RandomTokens(300, 320, 6), {.new_tokens = kTokens});
  const std::array<int, 1> draft_lengths = {10};
  const DraftQuality same = evaluation.Judge(MakeCompressor("none"), 1.0, draft_lengths);
  EXPECT_EQ(same.agreement, 1.0);
  EXPECT_LT(same.kl, 1e-6);
  EXPECT_EQ(same.rounds[0].acceptance_length(), 10.0);
  EXPECT_EQ(same.rounds[0].rounds, (kTokens - 1) / 11);
  EXPECT_EQ(same.bytes_ratio(), 1.0);
  const DraftQuality lossy = evaluation.Judge(MakeCompressor("streamingllm"), 0.05, draft_lengths);
  EXPECT_GT(lossy.kl, same.kl);
  EXPECT_LT(lossy.agreement, 1.0);
  EXPECT_LT(lossy.bytes_ratio(), 0.25);
}

TEST(DraftEvaluation, RefusesWhatDoesNotFit) {
  const Model& model = LoadTiny({.context = 256});
  Transformer transformer(model, 1);
  EXPECT_THROW(DraftEvaluation(transformer, RandomTokens(200, 320, 6), {.new_tokens = 57}),
               UserError);
  EXPECT_THROW(DraftEvaluation(transformer, {}, {.new_tokens = 2}), UserError);
}

}  // namespace
}  // namespace vericache
