// A compressed cache that is plainly wrong may cost time, never a token.
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

// Overwrites every key of the tail with large random numbers; values stay.
void ScrambleKeys(KvCache& cache) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 8.0F);
  const CacheGeometry& geometry = cache.geometry();
  std::vector<float> key(static_cast<std::size_t>(geometry.head_dim));
  std::vector<float> value(key.size());
  for (int i = 0; i < geometry.layers; ++i) {
    for (int slot = 0; slot < cache.tail_slots(LayerId{i}); ++slot) {
      for (int head = 0; head < geometry.kv_heads; ++head) {
        cache.ReadTail(LayerId{i}, slot, head, key, value);
        for (float& x : key) {
          x = normal(random);
        }
        cache.Write(LayerId{i}, slot, head, key, value);
      }
    }
  }
}

const EngineEvents kScramble = {.on_prefill = {},
                                .on_compressed = [](int, KvCache& cache) { ScrambleKeys(cache); },
                                .on_tokens = {},
                                .on_finish = {}};

std::vector<Prompt> Prompts() {
  return {{.id = "0", .tokens = RandomTokens(300, 320, 1), .max_tokens = 48},
          {.id = "1", .tokens = RandomTokens(90, 320, 2), .max_tokens = 48},
          {.id = "2", .tokens = RandomTokens(550, 320, 3), .max_tokens = 48}};
}

class BrokenCompressor : public testing::TestWithParam<const char*> {};

TEST_P(BrokenCompressor, OutputStaysAndAcceptanceGoes) {
  const Model& model = LoadTiny({.architecture = GetParam()});
  const std::vector<Result> full = RunFull(model, Prompts());
  for (const int draft_length : {4, 16}) {
    EngineOptions options = VeriCacheOptions("none", 1.0, draft_length);
    options.batch = 3;
    const std::vector<Result> sound = RunEngine(model, options, Prompts());
    EXPECT_EQ(Difference(full, sound), "");
    EXPECT_GT(AcceptanceOf(sound).share(), 0.9) << "draft length " << draft_length;

    const std::vector<Result> broken = RunEngine(model, options, Prompts(), kScramble);
    EXPECT_EQ(Difference(full, broken), "");
    EXPECT_LT(AcceptanceOf(broken).share(), 0.1) << "draft length " << draft_length;
  }
}

TEST_P(BrokenCompressor, LossyShowsIt) {
  const Model& model = LoadTiny({.architecture = GetParam()});
  const std::vector<Result> full = RunFull(model, Prompts());
  EngineOptions options = VeriCacheOptions("none", 1.0, 16);
  options.policy = Policy::kLossy;
  const std::vector<Result> lossy = RunEngine(model, options, Prompts(), kScramble);
  for (std::size_t i = 0; i < full.size(); ++i) {
    EXPECT_NE(full[i].tokens, lossy[i].tokens) << "prompt " << i;
    EXPECT_EQ(full[i].tokens[0], lossy[i].tokens[0]) << "the prefill gave it";
  }
}

INSTANTIATE_TEST_SUITE_P(, BrokenCompressor, testing::Values("llama", "qwen2", "qwen3"));

// Otherwise equality would prove little.
TEST(TinyModels, OutputVaries) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    for (const bool tied : {false, true}) {
      const Model& model = LoadTiny({.architecture = architecture, .tied = tied});
      for (const Result& result : RunFull(model, Prompts())) {
        const std::set<TokenId> distinct(result.tokens.begin(), result.tokens.end());
        EXPECT_GT(distinct.size(), 12U) << architecture << (tied ? " tied" : "");
      }
    }
  }
}

// A good compressor must win something, or the property would only see rejected drafts.
TEST(TinyModels, QuantizedDraftsAreOftenRight) {
  const Model& model = LoadTiny({});
  const std::vector<Result> results =
      RunEngine(model, VeriCacheOptions("kivi4", 1.0, 8), Prompts());
  EXPECT_GT(AcceptanceOf(results).share(), 0.15);
  EXPECT_LT(AcceptanceOf(results).share(), 0.95);
}

}  // namespace
}  // namespace vericache
