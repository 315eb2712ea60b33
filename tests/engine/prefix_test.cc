// Prompts that begin as an earlier one did start from its cache, and emit what they would have.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

// Two chunks and a bit that all share, then a part of their own.
std::vector<Prompt> Prompts() {
  std::vector<Prompt> prompts;
  const std::vector<TokenId> begin = RandomTokens(600, 320, 7);
  for (unsigned i = 0; i < 3; ++i) {
    Prompt prompt{.id = std::to_string(i), .tokens = begin, .max_tokens = 30};
    const std::vector<TokenId> rest = RandomTokens(100 + 40 * static_cast<int>(i), 320, i);
    prompt.tokens.insert(prompt.tokens.end(), rest.begin(), rest.end());
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

class PrefixReuse : public testing::TestWithParam<const char*> {
 protected:
  std::string Place() const {
    return std::string(GetParam()) == "disk" ? "disk:" + (folder_.path() / "p").string()
                                             : "memory:64MiB";
  }
  TempDir folder_;
};

// Together: who shares waits for the part that is being computed, whoever goes on or away.
TEST(SharedPrefix, IsComputedOnceByPromptsThatComeTogether) {
  const Model& model = LoadTiny({});
  const std::vector<Result> full = RunFull(model, Prompts());
  for (const bool cancelled : {false, true}) {
    EngineOptions options = VeriCacheOptions("snapkv+kivi4", 0.5, 6);
    options.prefixes = MakePrefixStore("memory:64MiB");
    options.batch = 3;
    options.prefill_chunk = 64;
    std::vector<Result> results(3);
    Engine engine(model, options, {.on_finish = [&results](int index, const Result& result) {
                    results[static_cast<std::size_t>(index)] = result;
                  }});
    for (const Prompt& prompt : Prompts()) {
      engine.Submit(prompt);
    }
    for (int i = 0; i < 5; ++i) {
      engine.Step();
    }
    if (cancelled) {  // it has computed a half of what is shared
      EXPECT_TRUE(engine.Cancel(0));
    }
    while (engine.Step()) {
    }
    // Who goes on after a cancelled one takes over what is left of it, if anything, and gives
    // what all share.
    EXPECT_EQ(results[2].reused_tokens, 512);
    EXPECT_EQ(results[1].reused_tokens, cancelled ? 0 : 512);
    for (std::size_t i = cancelled ? 1 : 0; i < full.size(); ++i) {
      EXPECT_EQ(Difference({full[i]}, {results[i]}), "") << i;
    }
  }
}

TEST_P(PrefixReuse, LaterPromptsComputeOnlyTheirOwnPart) {
  const Model& model = LoadTiny({});
  const std::vector<Result> full = RunFull(model, Prompts());
  for (const Policy policy : {Policy::kFull, Policy::kVeriCache, Policy::kLockstep}) {
    for (const bool reloads : {false, true}) {
      EngineOptions options = VeriCacheOptions("snapkv+kivi4", 0.5, 6);
      options.policy = policy;
      options.prefixes = MakePrefixStore(Place());
      if (reloads) {
        options.link_bandwidth = 1e9;
      }
      // One after the other, each in an engine of its own.
      const bool kept_from_before = policy != Policy::kFull || reloads;
      for (std::size_t i = 0; i < full.size(); ++i) {
        const std::vector<Result> results = RunEngine(model, options, {Prompts()[i]});
        EXPECT_EQ(Difference({full[i]}, results), "") << Name(policy);
        const bool own_kept = std::string(GetParam()) == "disk" && kept_from_before;
        if (i > 0 || own_kept) {
          // The last prompt has 12 tokens more than three chunks; a compressor looks at more.
          const bool whole = own_kept && policy == Policy::kFull && i == 2;
          EXPECT_EQ(results[0].reused_tokens, whole ? 768 : 512) << Name(policy);
        } else {
          EXPECT_EQ(results[0].reused_tokens, 0);
        }
      }
    }
  }
}

// Of requests that run together: the later ones refer to the pages of the first one.
TEST(SharedPrefix, LivesOnceInMemory) {
  const Model& model = LoadTiny({});
  const std::vector<Result> full = RunFull(model, Prompts());
  const auto peak = [&](bool share, Policy policy, const char* compressor) {
    EngineOptions options = VeriCacheOptions(compressor, 0.5, 6);
    options.policy = policy;
    options.batch = 3;
    if (share) {
      options.prefixes = MakePrefixStore("memory:1KiB");  // which keeps nothing
    }
    Engine engine(model, options);
    const std::vector<Result> results = engine.Run(Prompts());
    EXPECT_EQ(Difference(full, results), "");
    for (std::size_t i = 1; i < results.size(); ++i) {
      EXPECT_EQ(results[i].reused_tokens, share ? 512 : 0);
    }
    return engine.fast_memory_peak();
  };
  peak(true, Policy::kVeriCache, "snapkv+kivi4");
  peak(true, Policy::kAuto, "none");
  const Bytes shared = peak(true, Policy::kFull, "none");
  const Bytes alone = peak(false, Policy::kFull, "none");
  EXPECT_EQ(alone, shared + PlainCacheBytes(model.params().geometry(), {}, 512) * 2);
}

// A whole prompt that is kept still computes its last tokens: they give the first logits, and what
// the compressor looks at.
TEST_P(PrefixReuse, SamePromptAgain) {
  const Model& model = LoadTiny({});
  const Prompt prompt{.id = "0", .tokens = RandomTokens(512, 320, 3), .max_tokens = 20};
  for (const char* compressor : {"snapkv", "kivi4"}) {
    EngineOptions options = VeriCacheOptions(compressor, 0.5, 6);
    options.prefixes = MakePrefixStore(Place());
    int accepted = 0;
    for (int turn = 0; turn < 3; ++turn) {
      const std::vector<Result> results = RunEngine(model, options, {prompt});
      EXPECT_EQ(Difference(RunFull(model, {prompt}), results), "");
      EXPECT_TRUE(turn == 0 || results[0].reused_tokens == 256);
      EXPECT_EQ(results[0].reused_compressed, turn > 0);
      accepted = turn == 0 ? results[0].accepted_tokens : accepted;
      EXPECT_EQ(results[0].accepted_tokens, accepted);  // the same compressed cache
    }
  }
}

TEST_P(PrefixReuse, AnotherModelFindsNothing) {
  EngineOptions options = VeriCacheOptions("none", 1.0, 6);
  const Model& model = LoadTiny({});
  options.prefixes = MakePrefixStore(Place());
  RunEngine(model, options, {Prompts()[0]});
  EXPECT_EQ(RunEngine(LoadTiny({.seed = 2}), options, {Prompts()[1]})[0].reused_tokens, 0);
  EXPECT_EQ(RunEngine(model, options, {Prompts()[1]})[0].reused_tokens, 512);
}

INSTANTIATE_TEST_SUITE_P(Places, PrefixReuse, testing::Values("memory", "disk"),
                         [](const auto& place) { return std::string(place.param); });

// What is damaged is computed again, and kept anew.
TEST(PrefixFaults, DamagedFilesAreNotUsed) {
  const Model& model = LoadTiny({});
  const TempDir folder;
  EngineOptions options = VeriCacheOptions("snapkv", 0.5, 6);
  options.prefixes = MakePrefixStore("disk:" + folder.path().string());
  const std::vector<Result> full = RunFull(model, Prompts());
  RunEngine(model, options, {Prompts()[0]});
  for (int turn = 0; turn < 2; ++turn) {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (turn == 0) {
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(5000);
        file.write("damaged", 7);
      } else {
        std::filesystem::resize_file(entry.path(), 100);
      }
    }
    const std::vector<Result> results = RunEngine(model, options, {Prompts()[1]});
    EXPECT_EQ(Difference({full[1]}, results), "");
    EXPECT_EQ(results[0].reused_tokens, 0);
    EXPECT_EQ(RunEngine(model, options, {Prompts()[1]})[0].reused_tokens, 512);
  }
}

// A compressed cache that is damaged, or of other options, is made anew.
TEST(PrefixFaults, CompressedCachesAreMadeAnew) {
  const Model& model = LoadTiny({});
  const TempDir folder;
  const Prompt prompt = Prompts()[0];
  EngineOptions options = VeriCacheOptions("snapkv", 0.5, 6);
  options.prefixes = MakePrefixStore("disk:" + folder.path().string());
  const auto files = [&] {
    std::set<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      paths.insert(entry.path());
    }
    return paths;
  };
  EngineOptions full = options;
  full.policy = Policy::kFull;
  const std::vector<Result> expected = RunEngine(model, full, {prompt});
  EXPECT_FALSE(expected[0].reused_compressed);
  const std::set<std::filesystem::path> chunks = files();
  EXPECT_FALSE(RunEngine(model, options, {prompt})[0].reused_compressed);
  EXPECT_TRUE(RunEngine(model, options, {prompt})[0].reused_compressed);
  for (const std::filesystem::path& path : files()) {
    if (!chunks.contains(path)) {
      std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    }
  }
  ASSERT_EQ(files().size(), chunks.size() + 1);
  const std::vector<Result> again = RunEngine(model, options, {prompt});
  EXPECT_EQ(Difference(expected, again), "");
  EXPECT_FALSE(again[0].reused_compressed);
  EXPECT_EQ(again[0].reused_tokens, 512);
  EXPECT_TRUE(RunEngine(model, options, {prompt})[0].reused_compressed);
  options.keep = 0.3;
  EXPECT_FALSE(RunEngine(model, options, {prompt})[0].reused_compressed);
  options.compressor = "snapkv+kivi4";
  EXPECT_FALSE(RunEngine(model, options, {prompt})[0].reused_compressed);
}

TEST(PrefixPlace, OthersAreRefused) {
  for (const char* text :
       {"", "memory", "memory:", "memory:lots", "disk:", "tape:x", "disk:/dev/null/x"}) {
    EXPECT_THROW(MakePrefixStore(text), UserError) << text;
  }
}

}  // namespace
}  // namespace vericache
