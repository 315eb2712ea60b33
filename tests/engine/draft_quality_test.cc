// What an evaluation says of a compressed cache is what the engine's rounds come to.
#include "evaluation/draft_quality.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
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
  DraftEvaluation evaluation(transformer, tokens,
                             {.new_tokens = kTokens,
                              .needs = {.query_window = 32,
                                        .query_statistics = true,
                                        .attention_sums = true,
                                        .repeated_chunk = 128,
                                        .verified_window = 64}});
  const Prompt prompt{.id = "0", .tokens = tokens, .max_tokens = kTokens};
  EXPECT_EQ(evaluation.continuation(), RunFull(model, {prompt})[0].tokens);
  bool some = false;
  for (const char* name : {"none", "streamingllm", "snapkv", "expectedattention", "kivi2",
                           "snapkv+kivi4", "snapkv:refresh=0.5", "h2o", "kvzip:chunk=128"}) {
    for (const double keep : {0.5, 0.15}) {  // more than a page, which the engine keeps at least
      const std::array<int, 3> draft_lengths = {5, 1, 12};
      const DraftQuality quality = evaluation.Judge(MakeCompressor(name), keep, draft_lengths);
      for (const RoundQuality& rounds : quality.rounds) {
        // What each round emitted, after the token of the prefill: the accepted ones and one more.
        std::vector<int> emitted;
        EngineEvents events;
        events.on_tokens = [&](int, std::span<const TokenId> more) {
          emitted.push_back(static_cast<int>(more.size()));
        };
        const Result result = RunEngine(model, VeriCacheOptions(name, keep, rounds.draft_length),
                                        {prompt}, events)[0];
        // The engine's last rounds are shorter, and not counted.
        ASSERT_LT(rounds.rounds, static_cast<int>(emitted.size())) << name;
        const auto end = emitted.begin() + 1 + rounds.rounds;
        EXPECT_EQ(rounds.accepted + rounds.rounds, std::accumulate(emitted.begin() + 1, end, 0))
            << name << " draft " << rounds.draft_length;
        EXPECT_GE(std::accumulate(emitted.begin(), end, 0), kTokens - 1 - rounds.draft_length);
        EXPECT_LE(quality.compressed, result.compressed_cache);
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

TEST(DraftEvaluation, SaysHowMuchIsRepeated) {
  const Model& model = LoadTiny({});
  Transformer transformer(model, 1);
  // A tiny random model soon repeats itself.
  DraftEvaluation evaluation(transformer, RandomTokens(64, 320, 7), {.new_tokens = 400});
  const std::vector<TokenId>& text = evaluation.continuation();
  std::size_t covered = 0;
  std::vector<bool> repeats(text.size());
  for (std::size_t i = 0; i + 8 <= text.size(); ++i) {
    for (std::size_t j = 0; j + 8 <= i; ++j) {
      if (std::equal(text.begin() + static_cast<std::ptrdiff_t>(i),
                     text.begin() + static_cast<std::ptrdiff_t>(i + 8),
                     text.begin() + static_cast<std::ptrdiff_t>(j))) {
        std::fill_n(repeats.begin() + static_cast<std::ptrdiff_t>(i), 8, true);
      }
    }
  }
  covered = static_cast<std::size_t>(std::count(repeats.begin(), repeats.end(), true));
  EXPECT_DOUBLE_EQ(evaluation.repetition().of_itself,
                   static_cast<double>(covered) / static_cast<double>(text.size()));
  EXPECT_EQ(evaluation.repetition().of_prompt, 0.0);
}

}  // namespace
}  // namespace vericache
