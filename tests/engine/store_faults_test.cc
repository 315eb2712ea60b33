// A full store that fails ends the requests whose caches it lost, with what they emitted so far
// verified; the others go on and lose nothing.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr int kTokens = 60;

std::vector<Prompt> ThreePrompts() {
  std::vector<Prompt> prompts;
  for (const int length : {300, 420, 150}) {
    prompts.push_back({.id = std::to_string(length),
                       .tokens = RandomTokens(length, 320, static_cast<unsigned>(length)),
                       .max_tokens = kTokens});
  }
  return prompts;
}

EngineOptions OnDisk(const TempDir& folder) {
  EngineOptions options = VeriCacheOptions("snapkv+kivi4", 0.5, 6);
  options.batch = 3;
  options.full_store.folder = folder.path();
  return options;
}

std::vector<std::filesystem::path> Files(const TempDir& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Each request has either ended by an error that has these words, with the right tokens until
// then, or is as with full caches. Says how many failed.
int ExpectFailedOrEqual(const std::vector<Result>& results, const std::string& words) {
  const std::vector<Result> full = RunFull(LoadTiny({}), ThreePrompts());
  int failed = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].finish_reason != FinishReason::kError) {
      EXPECT_EQ(Difference({full[i]}, {results[i]}), "");
      continue;
    }
    ++failed;
    EXPECT_NE(results[i].error.find(words), std::string::npos) << results[i].error;
    EXPECT_LT(results[i].tokens.size(), full[i].tokens.size());
    EXPECT_TRUE(
        std::equal(results[i].tokens.begin(), results[i].tokens.end(), full[i].tokens.begin()));
  }
  return failed;
}

// Runs the prompts and harms a file once every request has emitted something.
int RunAndHarm(const std::function<void(const std::filesystem::path&)>& harm,
               const std::string& words) {
  const TempDir folder;
  bool harmed = false;
  std::vector<int> emitted(ThreePrompts().size());
  EngineEvents events;
  events.on_tokens = [&](int index, std::span<const TokenId> tokens) {
    emitted[static_cast<std::size_t>(index)] += static_cast<int>(tokens.size());
    const bool all = std::all_of(emitted.begin(), emitted.end(), [](int n) { return n > 1; });
    if (all && !harmed) {
      harmed = true;
      harm(Files(folder).front());
    }
  };
  const std::vector<Result> results =
      RunEngine(LoadTiny({}), OnDisk(folder), ThreePrompts(), std::move(events));
  EXPECT_TRUE(harmed);
  EXPECT_TRUE(Files(folder).empty()) << "files go with their requests";
  return ExpectFailedOrEqual(results, words);
}

TEST(StoreFaults, CorruptedPage) {
  EXPECT_EQ(RunAndHarm(
                [](const std::filesystem::path& path) {
                  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                  file.seekp(1000);
                  file.put('\x55');
                  file.put('\x2A');
                },
                "checksum"),
            1);
}

TEST(StoreFaults, DeletedFile) {
  EXPECT_EQ(RunAndHarm([](const std::filesystem::path& path) { std::filesystem::remove(path); },
                       "deleted"),
            1);
}

TEST(StoreFaults, TruncatedFile) {
  EXPECT_EQ(RunAndHarm(
                [](const std::filesystem::path& path) { std::filesystem::resize_file(path, 4096); },
                ".fullcache"),  // too short, or filled up with zeros by a later write
            1);
}

// The file size limit stands for a full disk: it fails the writes of the longest caches only.
TEST(StoreFaults, DiskFull) {
  const TempDir folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const Model& model = LoadTiny({});
  const std::vector<Result> full = RunFull(model, ThreePrompts());
  const rlimit limit{.rlim_cur = full[0].full_cache.count + 4096 * 8, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::vector<Result> results = RunEngine(model, OnDisk(folder), ThreePrompts());
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(ExpectFailedOrEqual(results, "cannot save"), 1);
  EXPECT_EQ(results[1].finish_reason, FinishReason::kError);
}

// What a store is for: the same tokens, from bit-equal logits, wherever the caches lie.
TEST(Stores, AreLosslessAndReloadEveryRound) {
  const Model& model = LoadTiny({});
  const std::vector<Result> full = RunFull(model, ThreePrompts());
  for (const Policy policy : {Policy::kVeriCache, Policy::kLockstep}) {
    for (const bool disk : {false, true}) {
      const TempDir folder;
      EngineOptions options = OnDisk(folder);
      options.policy = policy;
      if (!disk) {
        options.full_store = {};
        options.link_bandwidth = 1e9;
      }
      Engine engine(model, options);
      const std::vector<Result> results = engine.Run(ThreePrompts());
      EXPECT_EQ(Difference(full, results), "");
      for (const Result& result : results) {
        EXPECT_EQ(result.reloads, result.rounds);
      }
      EXPECT_EQ(engine.counts().reloads, engine.counts().rounds);
    }
  }
}

}  // namespace
}  // namespace vericache
