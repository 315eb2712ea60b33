// The budget of fast memory: never exceeded, never a crash, and it changes nothing but the time.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr const char* kAnyCompressors[] = {"none", "streamingllm", "kivi4", "kivi2",
                                           "snapkv+kivi4"};
constexpr Policy kPolicies[] = {Policy::kFull, Policy::kLossy, Policy::kVeriCache};

std::vector<Prompt> Prompts(int count) {
  std::vector<Prompt> prompts;
  for (int i = 0; i < count; ++i) {
    prompts.push_back({.id = std::to_string(i),
                       .tokens = RandomTokens(250 + 60 * i, 320, static_cast<unsigned>(i)),
                       .max_tokens = 90});
  }
  return prompts;
}

TEST(FastMemory, ExactlyEnoughSuffices) {
  const Model& model = LoadTiny({});
  for (const Policy policy : kPolicies) {
    for (const char* compressor : kAnyCompressors) {
      for (const int draft_length : {1, 40}) {
        EngineOptions options = VeriCacheOptions(compressor, 0.4, draft_length);
        options.policy = policy;
        options.fast_memory = FastMemoryNeed(model, options, Prompts(1)[0]);
        Engine engine(model, options);
        engine.Run(Prompts(1));
        EXPECT_LE(engine.fast_memory_peak(), options.fast_memory);
        // The plan is not far above what was used: half of it would be a waste.
        EXPECT_GT(2 * engine.fast_memory_peak().count, options.fast_memory.count)
            << compressor << " " << Name(policy);
      }
    }
  }
}

TEST(FastMemory, TooLittleSaysHowMuchIsNeeded) {
  const Model& model = LoadTiny({});
  for (const Policy policy : kPolicies) {
    for (const char* compressor : kAnyCompressors) {
      EngineOptions options = VeriCacheOptions(compressor, 0.4, 16);
      options.policy = policy;
      const Bytes need = FastMemoryNeed(model, options, Prompts(1)[0]);
      options.fast_memory = need - Bytes{1};
      Engine engine(model, options);
      try {
        engine.Submit(Prompts(1)[0]);
        FAIL() << "no error";
      } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find(HumanBytes(need)), std::string::npos)
            << error.what();
      }
      EXPECT_FALSE(engine.Step());
    }
  }
}

TEST(FastMemory, RequestsWaitForEachOther) {
  const Model& model = LoadTiny({});
  const std::vector<Prompt> prompts = Prompts(4);
  const std::vector<Result> full = RunFull(model, prompts);
  for (const char* compressor : kAnyCompressors) {
    EngineOptions options = VeriCacheOptions(compressor, 0.4, 8);
    options.batch = 4;
    const Bytes largest = FastMemoryNeed(model, options, prompts.back());
    Bytes all;
    for (const Prompt& prompt : prompts) {
      all += FastMemoryNeed(model, options, prompt);
    }
    for (const Bytes budget : {largest, Bytes{2 * largest.count - 1}, all - Bytes{1}, all}) {
      options.fast_memory = budget;
      Engine engine(model, options);
      EXPECT_EQ(Difference(full, engine.Run(prompts)), "") << compressor;
      EXPECT_LE(engine.fast_memory_peak(), budget);
    }
  }
}

// Under the policy full, with a store: caches that do not fit together take turns, and outputs are
// the same.
TEST(FastMemory, FullCachesTakeTurns) {
  const Model& model = LoadTiny({});
  std::vector<Prompt> prompts = Prompts(4);
  for (Prompt& prompt : prompts) {
    prompt.max_tokens = 200;
  }
  const std::vector<Result> full = RunFull(model, prompts);
  const TempDir folder;
  for (const bool disk : {false, true}) {
    EngineOptions options = VeriCacheOptions("none", 1.0, 8);
    options.policy = Policy::kFull;
    options.batch = 4;
    options.fast_memory = FastMemoryNeed(model, options, prompts.back()) * 2;
    if (disk) {
      options.full_store.folder = folder.path();
    } else {
      options.link_bandwidth = 1e9;
    }
    std::vector<int> began;
    std::vector<int> ended;
    EngineEvents events;
    events.on_prefill = [&](int index, int done, int total) {
      if (done == total) {
        began.push_back(index);
      }
    };
    events.on_finish = [&](int index, const Result&) {
      ended.push_back(index);
      EXPECT_EQ(began.size(), prompts.size());  // nobody waits for another one's end
    };
    Engine engine(model, options, events);
    const std::vector<Result> results = engine.Run(prompts);
    EXPECT_EQ(Difference(full, results), "");
    EXPECT_LE(engine.fast_memory_peak(), options.fast_memory);
    EXPECT_GE(engine.counts().reloads, 4);
    EXPECT_EQ(ended.size(), prompts.size());
  }
}

// Under auto, what fits into fast memory is not moved.
TEST(FastMemory, AutoMovesOnlyWhatDoesNotFit) {
  const Model& model = LoadTiny({});
  const std::vector<Prompt> prompts = Prompts(4);
  const std::vector<Result> full = RunFull(model, prompts);
  EngineOptions options = VeriCacheOptions("snapkv", 0.4, 8);
  options.policy = Policy::kAuto;
  options.batch = 4;
  options.link_bandwidth = 1e9;
  Bytes all;
  for (const Prompt& prompt : prompts) {
    all += FastMemoryNeed(model, options, prompt);
  }
  for (const bool fits : {true, false}) {
    options.fast_memory = fits ? all : FastMemoryNeed(model, options, prompts.back()) * 2;
    Engine engine(model, options);
    EXPECT_EQ(Difference(full, engine.Run(prompts)), "");
    EXPECT_EQ(engine.counts().reloads == 0, fits);
    EXPECT_LE(engine.fast_memory_peak(), options.fast_memory);
  }
}

// In the budget of a few full caches, several times as many requests run at once where full caches
// are there only around verifies; and the machine's memory is as little used as the pool says.
TEST(FastMemory, HoldsMoreRequestsAtOnce) {
  const Model& model = LoadTiny({});
  std::vector<Prompt> prompts;
  for (unsigned i = 0; i < 36; ++i) {
    prompts.push_back(
        {.id = std::to_string(i), .tokens = RandomTokens(1900, 320, i % 4), .max_tokens = 90});
  }
  const auto most_at_once = [&](Policy policy) {
    EngineOptions options = VeriCacheOptions("snapkv", 0.2, 16);
    options.policy = policy;
    options.batch = 36;
    if (policy != Policy::kFull) {  // else full caches would take turns
      options.link_bandwidth = 1e10;
    }
    options.prefixes = MakePrefixStore("memory:64MiB");
    EngineOptions full = options;
    full.policy = Policy::kFull;
    options.fast_memory = FastMemoryNeed(model, full, prompts[0]) * 8;
    int decoding = 0;
    int most = 0;
    std::vector<bool> seen(prompts.size());
    EngineEvents events;
    events.on_tokens = [&](int index, std::span<const TokenId>) {
      if (!seen[static_cast<std::size_t>(index)]) {
        seen[static_cast<std::size_t>(index)] = true;
        most = std::max(most, ++decoding);
      }
    };
    events.on_finish = [&](int, const Result&) { --decoding; };
    Engine engine(model, options, events);
    engine.Run(prompts);
    EXPECT_LE(engine.fast_memory_peak(), options.fast_memory);
    return most;
  };
  const int full = most_at_once(Policy::kFull);
  EXPECT_EQ(full, 8);
  EXPECT_GE(2 * most_at_once(Policy::kVeriCache), 7 * full);
}

Bytes ResidentMemory() {
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return {resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))};
}

// The budget is of real memory: what the process takes grows by no more than that, and by as much
// as the pool says.
TEST(FastMemory, TheProcessFollowsTheBudget) {
  const Model& model = LoadTiny({.layers = 4, .heads = 8, .kv_heads = 8});  // 8 KiB a token
  std::vector<Prompt> prompts;
  for (unsigned i = 0; i < 8; ++i) {
    prompts.push_back(
        {.id = std::to_string(i), .tokens = RandomTokens(1000, 320, i), .max_tokens = 40});
  }
  constexpr Bytes kSlack{4U << 20U};
  const TempDir folder;
  const auto growth = [&](EngineOptions options) {
    options.batch = 8;
    Bytes most;
    EngineEvents events;
    events.on_prefill = [&](int, int, int) { most = std::max(most, ResidentMemory()); };
    events.on_tokens = [&](int, std::span<const TokenId>) {
      most = std::max(most, ResidentMemory());
    };
    Engine engine(model, options, events);
    // What iterations work in is not of the budget.
    engine.Run({{.id = "first", .tokens = RandomTokens(520, 320, 9), .max_tokens = 1}});
    malloc_trim(0);  // what earlier runs freed, too, is memory to take
    const Bytes before = ResidentMemory();
    engine.Run(prompts);
    EXPECT_LE(engine.fast_memory_peak(), options.fast_memory);
    const Bytes grown = most - std::min(most, before);
    EXPECT_GE(grown + kSlack * 2, engine.fast_memory_peak());
    return grown;
  };
  EngineOptions options = VeriCacheOptions("snapkv", 0.2, 16);
  options.full_store.folder = folder.path();
  options.fast_memory = FastMemoryNeed(model, options, prompts[0]) * 2;
  EXPECT_LE(growth(options), options.fast_memory + kSlack);
  // Without the policy all full caches are there at once, and seen.
  options.policy = Policy::kFull;
  options.fast_memory = kAmple;
  EXPECT_GE(growth(options), Bytes{8U * 1000U * 8192U});
}

// What the policy is for: the full cache is not in fast memory.
TEST(FastMemory, CompressedCachesTakeLess) {
  const Model& model = LoadTiny({});
  const Prompt prompt{.id = "0", .tokens = RandomTokens(1500, 320, 1), .max_tokens = 4};
  const Result full = RunFull(model, {prompt})[0];
  const auto share = [&](const char* compressor, double keep) {
    Engine engine(model, VeriCacheOptions(compressor, keep, 4));
    const Result result = engine.Run({prompt})[0];
    EXPECT_EQ(result.full_cache, full.full_cache);
    EXPECT_EQ(result.compressed_cache, engine.fast_memory_peak());
    return static_cast<double>(engine.fast_memory_peak().count) /
           static_cast<double>(full.full_cache.count);
  };
  EXPECT_EQ(full.compressed_cache, Bytes{});
  EXPECT_LT(share("streamingllm", 0.2), 0.25);
  EXPECT_LT(share("snapkv", 0.1), 0.15);
  EXPECT_LT(share("kivi4", 1.0), 0.5);
  EXPECT_LT(share("kivi2", 1.0), 0.4);
  EXPECT_LT(share("snapkv+kivi4", 0.5), 0.4);
}

}  // namespace
}  // namespace vericache
