// The budget of fast memory: never exceeded, never a crash, and it changes nothing but the time.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr const char* kCompressors[] = {"none", "streamingllm", "kivi4", "kivi2", "snapkv+kivi4"};
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
    for (const char* compressor : kCompressors) {
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
    for (const char* compressor : kCompressors) {
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
  for (const char* compressor : kCompressors) {
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
    options.link_bandwidth = 1e10;
    options.prefixes = MakePrefixStore("memory:64MiB", model);
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
