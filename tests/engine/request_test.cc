// The life of a request: its ends, the limits of the context, order, and a stop in between.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

std::vector<Prompt> Prompts(int max_tokens) {
  std::vector<Prompt> prompts;
  for (const int length : {280, 1, 33, 520, 150}) {
    prompts.push_back({.id = std::to_string(length),
                       .tokens = RandomTokens(length, 320, static_cast<unsigned>(length)),
                       .max_tokens = max_tokens});
  }
  return prompts;
}

TEST(Request, OrderAndBatchDoNotMatter) {
  const Model& model = LoadTiny({});
  std::vector<Prompt> prompts = Prompts(30);
  std::vector<Result> full = RunFull(model, prompts);
  for (int turn = 0; turn < 5; ++turn) {
    std::rotate(prompts.begin(), prompts.begin() + 1, prompts.end());
    std::rotate(full.begin(), full.begin() + 1, full.end());
    for (const Policy policy : {Policy::kFull, Policy::kVeriCache}) {
      EngineOptions options = VeriCacheOptions("snapkv+kivi4", 0.5, 5);
      options.policy = policy;
      options.batch = 1 + turn;
      options.prefill_chunk = 64 + turn;
      EXPECT_EQ(Difference(full, RunEngine(model, options, prompts)), "") << "turn " << turn;
    }
  }
}

TEST(Request, MaxTokens) {
  const Model& model = LoadTiny({});
  for (const int max_tokens : {1, 2, 3, 17, 18}) {
    const std::vector<Prompt> prompts = Prompts(max_tokens);
    const std::vector<Result> results =
        RunEngine(model, VeriCacheOptions("none", 1.0, 16), prompts);
    EXPECT_EQ(Difference(RunFull(model, prompts), results), "");
    for (const Result& result : results) {
      EXPECT_EQ(result.tokens.size(), static_cast<std::size_t>(max_tokens));
      EXPECT_EQ(result.finish_reason, FinishReason::kLength);
    }
  }
}

// An end token may come up anywhere in a draft: each emitted token is made the end once.
TEST(Request, EndsExactlyAtTheEndToken) {
  const Model& model = LoadTiny({});
  const Prompt prompt{.id = "0", .tokens = RandomTokens(260, 320, 4), .max_tokens = 30};
  const std::vector<TokenId> all = RunFull(model, {prompt})[0].tokens;
  for (const char* compressor : {"none", "kivi4", "streamingllm"}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const TokenId end = all[i];
      const auto first = std::find(all.begin(), all.end(), end);
      EngineOptions options = VeriCacheOptions(compressor, 0.3, 9);
      options.is_end = [end](TokenId token) { return token == end; };
      const std::vector<Result> results = RunEngine(model, options, {prompt});
      EXPECT_EQ(results[0].tokens, std::vector<TokenId>(all.begin(), first + 1)) << compressor;
      EXPECT_EQ(results[0].finish_reason, FinishReason::kEnd);
      EXPECT_EQ(Difference(RunFull(model, {prompt}, options.is_end), results), "") << compressor;
    }
  }
}

TEST(Request, TokensAreHandedOutOnceAndInOrder) {
  const Model& model = LoadTiny({});
  const std::vector<Prompt> prompts = Prompts(25);
  std::vector<std::vector<TokenId>> seen(prompts.size());
  std::vector<int> finished;
  EngineEvents events;
  events.on_tokens = [&](int index, std::span<const TokenId> tokens) {
    std::vector<TokenId>& to = seen[static_cast<std::size_t>(index)];
    to.insert(to.end(), tokens.begin(), tokens.end());
  };
  events.on_finish = [&](int index, const Result&) { finished.push_back(index); };
  EngineOptions options = VeriCacheOptions("kivi2", 1.0, 6);
  options.batch = 3;
  const std::vector<Result> results = RunEngine(model, options, prompts, events);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(seen[i], results[i].tokens);
    EXPECT_GT(results[i].rounds, 0);
    EXPECT_LE(results[i].accepted_tokens, results[i].drafted_tokens);
  }
  std::sort(finished.begin(), finished.end());
  EXPECT_EQ(finished, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Context, GenerationStopsAtItsEnd) {
  const Model& model = LoadTiny({.context = 128});
  for (const int length : {100, 120, 127, 128}) {
    const Prompt prompt{.id = "0", .tokens = RandomTokens(length, 320, 9), .max_tokens = 1000};
    for (const char* compressor : {"none", "snapkv"}) {
      const std::vector<Result> results =
          RunEngine(model, VeriCacheOptions(compressor, 0.5, 16), {prompt});
      // The last token is emitted but never fed, so a prompt that fills the context gives one.
      EXPECT_EQ(results[0].tokens.size(), static_cast<std::size_t>(128 - length + 1));
      EXPECT_EQ(results[0].finish_reason, FinishReason::kLength);
      EXPECT_EQ(Difference(RunFull(model, {prompt}), results), "") << length;
    }
  }
}

TEST(Context, LongerPromptIsRefusedWithBothNumbers) {
  const Model& model = LoadTiny({.context = 128});
  Engine engine(model, VeriCacheOptions("none", 1.0, 4));
  try {
    engine.Submit({.id = "0", .tokens = RandomTokens(129, 320, 9), .max_tokens = 4});
    FAIL() << "no error";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("129"), std::string::npos) << message;
    EXPECT_NE(message.find("128"), std::string::npos) << message;
  }
  EXPECT_THROW(engine.Submit({.id = "0", .tokens = {}, .max_tokens = 4}), UserError);
  EXPECT_THROW(engine.Submit({.id = "0", .tokens = RandomTokens(9, 320, 9), .max_tokens = 0}),
               UserError);
  for (const int token : {-1, 320}) {
    EXPECT_THROW(engine.Submit({.id = "0", .tokens = {TokenId{token}}, .max_tokens = 4}),
                 UserError);
  }
  EXPECT_FALSE(engine.Step()) << "nothing was queued";
}

// Wherever a stop falls, Step throws and everything is given back (pools abort otherwise).
TEST(Stop, AnywhereLeavesPoolsClean) {
  const Model& model = LoadTiny({});
  int stopped = 0;
  for (const Policy policy : {Policy::kVeriCache, Policy::kFull, Policy::kLossy}) {
    for (const int patience : {0, 1, 2, 10, 50, 200, 500, 1000, 2000, 4000}) {
      EngineOptions options = VeriCacheOptions("snapkv+kivi4", 0.5, 4);
      options.policy = policy;
      options.batch = 3;
      options.prefill_chunk = 100;
      Engine engine(model, options);
      std::atomic<int> asked{0};
      engine.SetStop([&] { return asked++ >= patience; });
      try {
        engine.Run(Prompts(8));
      } catch (const Interrupted&) {
        ++stopped;
      }
    }
  }
  EXPECT_GT(stopped, 20);
}

// Dropping from less than a page would free nothing, and cost all drafts.
TEST(ShortPrompts, AreKeptAsAWhole) {
  const Model& model = LoadTiny({});
  for (const char* compressor : {"streamingllm", "snapkv", "expectedattention", "h2o"}) {
    const EngineOptions options = VeriCacheOptions(compressor, 0.05, 6);
    for (const int tokens : {5, 64}) {
      const std::vector<Result> results = RunEngine(
          model, options, {{.id = "", .tokens = RandomTokens(tokens, 320, 4), .max_tokens = 40}});
      EXPECT_GT(AcceptanceOf(results).share(), 0.9) << compressor << ' ' << tokens;
    }
  }
}

}  // namespace
}  // namespace vericache
