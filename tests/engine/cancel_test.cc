// Requests that are cancelled, or end themselves, leave nothing behind and change nothing for the
// others.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck.h"
#include "rapidcheck/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

template <typename T>
T Within(T first, T end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(first, end));
}

void ExpectEmpty(const EngineState& state) {
  RC_ASSERT(state.requests == RequestStates{});
  RC_ASSERT(state.resident == Bytes{});
  RC_ASSERT(state.transient == Bytes{});
  RC_ASSERT(state.in_place == Bytes{});
}

std::vector<Prompt> Prompts(int count) {
  std::vector<Prompt> prompts;
  for (int i = 0; i < count; ++i) {
    prompts.push_back({.id = std::to_string(i),
                       .tokens = RandomTokens(Within(1, 400), 320, static_cast<unsigned>(i % 3)),
                       .max_tokens = Within(1, 40)});
  }
  return prompts;
}

EngineOptions AnyOptions(const Model& model, const std::vector<Prompt>& prompts,
                         const TempDir& folder) {
  EngineOptions options = VeriCacheOptions(
      *rc::gen::element<std::string>("snapkv", "kivi4", "snapkv+kivi4"), 0.3, Within(1, 8));
  options.policy = *rc::gen::element(Policy::kVeriCache, Policy::kVeriCache, Policy::kAuto,
                                     Policy::kLockstep, Policy::kFull, Policy::kLossy);
  options.batch = Within(1, 6);
  options.prefill_chunk = *rc::gen::element(16, 100, 512);
  options.turn = Within(1, 12);
  switch (Within(0, 3)) {
    case 0:
      break;
    case 1:
      options.link_bandwidth = *rc::gen::element(2e7, 2e8);
      break;
    default:
      options.full_store.folder = folder.path();
  }
  if (Within(0, 3) == 0) {
    options.prefixes = MakePrefixStore("memory:64MiB");
  }
  Bytes most;
  Bytes all;
  for (const Prompt& prompt : prompts) {
    most = std::max(most, FastMemoryNeed(model, options, prompt));
    all += FastMemoryNeed(model, options, prompt);
  }
  options.fast_memory = most + Bytes{Within<std::uint64_t>(0, (all - most).count + 1)};
  return options;
}

// Queued, prefilling, drafting, waiting for a reload, moving out: cancels come at any iteration.
RC_GTEST_PROP(Cancel, LeavesNoPageAndTheOthersAsTheyWere, ()) {
  const Model& model = LoadTiny({});
  const TempDir folder;
  const std::vector<Prompt> prompts = Prompts(Within(1, 8));
  const EngineOptions options = AnyOptions(model, prompts, folder);
  const int seldom = *rc::gen::element(3, 10, 40);
  std::map<int, Result> ended;
  Engine engine(model, options, {.on_finish = [&](int index, const Result& result) {
                  RC_ASSERT(ended.emplace(index, result).second);
                }});
  for (const Prompt& prompt : prompts) {
    engine.Submit(prompt);
  }
  std::mt19937 random(Within(0U, 1U << 30U));
  do {
    while (random() % static_cast<unsigned>(seldom) == 0) {
      const int index = static_cast<int>(random() % prompts.size());
      const bool over = ended.contains(index);
      RC_ASSERT(engine.Cancel(index) == !over);
      RC_ASSERT(ended.contains(index));
    }
  } while (engine.Step());
  ExpectEmpty(engine.state());
  RC_ASSERT(ended.size() == prompts.size());

  bool some_cancelled = false;
  for (const auto& [index, result] : ended) {
    const bool cancelled = result.finish_reason == FinishReason::kCancelled;
    some_cancelled = some_cancelled || (cancelled && !result.tokens.empty());
    if (options.policy == Policy::kLossy) {
      continue;
    }
    const std::vector<Result> full = RunFull(model, {prompts[static_cast<std::size_t>(index)]});
    if (!cancelled) {
      RC_ASSERT(Difference(full, {result}) == "");
    } else {  // what came until then is verified
      RC_ASSERT(result.tokens.size() < full[0].tokens.size());
      RC_ASSERT(std::equal(result.tokens.begin(), result.tokens.end(), full[0].tokens.begin()));
    }
  }
  RC_CLASSIFY(some_cancelled, "cancelled with tokens");
}

TEST(Ends, WhereThePromptSaysInsideADraftToo) {
  const Model& model = LoadTiny({});
  const Prompt prompt{.id = "0", .tokens = RandomTokens(100, 320, 5), .max_tokens = 40};
  const Result whole = RunFull(model, {prompt}).at(0);
  for (const Policy policy : {Policy::kVeriCache, Policy::kFull, Policy::kAuto}) {
    for (const std::size_t last : {0U, 1U, 6U, 17U}) {
      EngineOptions options = VeriCacheOptions("kivi4", 1.0, 8);
      options.policy = policy;
      Prompt ends = prompt;
      std::vector<TokenId> seen;
      ends.ends = [&](const EmittedToken& emitted) {
        EXPECT_EQ(emitted.logits.size(), 320U);
        EXPECT_EQ(emitted.token,
                  TokenId{static_cast<std::int32_t>(std::ranges::max_element(emitted.logits) -
                                                    emitted.logits.begin())});
        seen.push_back(emitted.token);
        return seen.size() == last + 1;
      };
      const Result result = RunEngine(model, options, {ends}).at(0);
      EXPECT_EQ(result.finish_reason, FinishReason::kStop);
      EXPECT_EQ(result.tokens, seen);
      EXPECT_EQ(result.tokens,
                std::vector<TokenId>(whole.tokens.begin(),
                                     whole.tokens.begin() + static_cast<std::ptrdiff_t>(last) + 1));
    }
  }
}

TEST(DraftLength, IsARequestsOwn) {
  const Model& model = LoadTiny({});
  std::vector<Prompt> prompts;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back({.id = std::to_string(i),
                       .tokens = RandomTokens(100, 320, static_cast<unsigned>(i)),
                       .max_tokens = 30});
  }
  prompts[1].draft_length = 2;
  prompts[2].draft_length = 0;
  EngineOptions options = VeriCacheOptions("kivi4", 1.0, 8);
  options.batch = 3;
  for (const bool link : {false, true}) {
    if (link) {
      options.link_bandwidth = 1e9;
    }
    const std::vector<Result> results = RunEngine(model, options, prompts);
    EXPECT_EQ(Difference(RunFull(model, prompts), results), "");
    EXPECT_GT(results[0].drafted_tokens, 2 * results[0].rounds);
    EXPECT_LE(results[1].drafted_tokens, 2 * results[1].rounds);
    EXPECT_GT(results[1].drafted_tokens, 0);
    EXPECT_EQ(results[2].drafted_tokens, 0);
    EXPECT_EQ(results[2].rounds, 29);
  }
}

}  // namespace
}  // namespace vericache
