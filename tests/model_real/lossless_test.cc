// The contract on a real model and real text: not the full cross product, but every value of every
// axis and every pair of compressor and draft length.
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/tokenizer.h"
#include "support/engine_runs.h"
#include "support/real_text.h"

namespace vericache {
namespace {

constexpr int kMaxTokens = 18;

class RealModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string path = EnvironmentPath("VERICACHE_TEST_MODEL");
    if (path.empty()) {
      return;
    }
    // As the program holds the weights.
    model_ = std::make_unique<Model>(path, ModelOptions{.weights = {.packed = true}});
    const Tokenizer tokenizer(path);
    prompts_ = {Prompt{.id = "0", .tokens = CodeTokens(tokenizer, 0, 240)},
                Prompt{.id = "1", .tokens = EnglishTokens(tokenizer, 0, 100)},
                Prompt{.id = "2", .tokens = EnglishTokens(tokenizer, 300, 260)},
                Prompt{.id = "3", .tokens = CodeTokens(tokenizer, 400, 200)},
                Prompt{.id = "4", .tokens = EnglishTokens(tokenizer, 0, 550)}};
    for (Prompt& prompt : prompts_) {
      prompt.max_tokens = kMaxTokens;
    }
    full_ = RunFull(*model_, prompts_);
  }
  static void TearDownTestSuite() {
    model_.reset();
    prompts_.clear();
    full_.clear();
  }

  void SetUp() override {
    if (!model_) {
      GTEST_SKIP() << "VERICACHE_TEST_MODEL is not set";
    }
  }

  // Runs one prompt, or all at once, and compares with the full cache.
  static void Check(const EngineOptions& options, bool all) {
    const std::size_t count = all ? prompts_.size() : 1;
    const std::vector<Result> expected(full_.begin(),
                                       full_.begin() + static_cast<std::ptrdiff_t>(count));
    Compare(options, {prompts_.begin(), prompts_.begin() + static_cast<std::ptrdiff_t>(count)},
            expected);
  }

  static void Compare(const EngineOptions& options, const std::vector<Prompt>& prompts,
                      const std::vector<Result>& expected) {
    const std::size_t count = prompts.size();
    const std::vector<Result> results = RunEngine(*model_, options, prompts);
    const Acceptance acceptance = AcceptanceOf(results);
    std::printf("%-18s keep %.2f draft %2d batch %zu threads %d chunk %3d: %d of %d accepted\n",
                options.compressor.c_str(), options.keep, options.draft_length, count,
                options.threads, options.prefill_chunk, acceptance.accepted, acceptance.drafted);
    EXPECT_EQ(Difference(expected, results), "");
  }

  static std::unique_ptr<Model> model_;
  static std::vector<Prompt> prompts_;
  static std::vector<Result> full_;
};

std::unique_ptr<Model> RealModel::model_;
std::vector<Prompt> RealModel::prompts_;
std::vector<Result> RealModel::full_;

TEST_F(RealModel, EveryCompressorAtEveryDraftLength) {
  const std::map<std::string, std::vector<double>> keeps = {{"none", {1.0}},
                                                            {"streamingllm", {0.5, 0.2, 0.05}},
                                                            {"snapkv", {0.5, 0.2, 0.05}},
                                                            {"kivi4", {1.0}},
                                                            {"kivi2", {1.0}},
                                                            {"snapkv+kivi4", {0.5, 0.2, 0.05}}};
  int turn = 0;
  for (const auto& [compressor, shares] : keeps) {
    for (const int draft_length : {1, 4, 16}) {
      const auto at = static_cast<std::size_t>(turn) % shares.size();
      EngineOptions options = VeriCacheOptions(compressor, shares[at], draft_length);
      options.threads = turn % 5 == 1 ? 1 : 2;
      options.prefill_chunk = turn % 3 == 0 ? 32 : 512;
      ++turn;
      Check(options, /*all=*/false);
    }
  }
}

// Long enough for whole drafts of 40, and for KIVI's tail to be packed in between.
TEST_F(RealModel, LongDrafts) {
  std::vector<Prompt> prompts = {prompts_[0]};
  prompts[0].max_tokens = 90;
  const std::vector<Result> full = RunFull(*model_, prompts);
  for (const char* compressor : {"none", "streamingllm", "kivi2", "snapkv+kivi4"}) {
    EngineOptions options = VeriCacheOptions(compressor, 0.5, 40);
    options.threads = 2;
    Compare(options, prompts, full);
  }
}

TEST_F(RealModel, BatchOfDifferentLengths) {
  const std::pair<const char*, double> cases[] = {
      {"snapkv", 0.05}, {"kivi4", 1.0}, {"streamingllm", 0.5}, {"snapkv+kivi4", 0.2}};
  int turn = 0;
  for (const auto& [compressor, keep] : cases) {
    EngineOptions options = VeriCacheOptions(
        compressor, keep, std::array{4, 16, 1}[static_cast<std::size_t>(turn % 3)]);
    options.batch = 5;
    options.threads = turn % 3 == 1 ? 1 : 2;
    options.prefill_chunk = turn % 3 == 0 ? 32 : 512;
    ++turn;
    Check(options, /*all=*/true);
  }
}

// The difference that the product makes.
TEST_F(RealModel, LossyOutputDiffers) {
  int differing = 0;
  for (const auto& [compressor, keep] :
       std::map<std::string, double>{{"streamingllm", 0.05}, {"kivi2", 1.0}}) {
    EngineOptions options = VeriCacheOptions(compressor, keep, 16);
    options.policy = Policy::kLossy;
    options.batch = 3;
    options.threads = 2;
    const std::vector<Result> lossy =
        RunEngine(*model_, options, {prompts_.begin(), prompts_.begin() + 4});
    for (std::size_t i = 0; i < lossy.size(); ++i) {
      differing += lossy[i].tokens != full_[i].tokens ? 1 : 0;
      EXPECT_EQ(lossy[i].tokens[0], full_[i].tokens[0]);
    }
  }
  std::printf("lossy output differs in %d of 8 cases\n", differing);
  EXPECT_GE(differing, 2);
}

// For files that mix K-quants, such as Q4_K_M.
TEST(RealKQuants, Lossless) {
  const std::string path = EnvironmentPath("VERICACHE_TEST_MODEL_KQUANT");
  if (path.empty()) {
    GTEST_SKIP() << "VERICACHE_TEST_MODEL_KQUANT is not set";
  }
  const Model model(path, {});
  const Tokenizer tokenizer(path);
  const std::vector<Prompt> prompts = {
      {.id = "0", .tokens = CodeTokens(tokenizer, 0, 600), .max_tokens = 32}};
  const std::vector<Result> full = RunFull(model, prompts);
  for (const char* compressor : {"kivi4", "snapkv"}) {
    for (const int draft_length : {4, 16}) {
      EngineOptions options = VeriCacheOptions(compressor, 0.5, draft_length);
      options.threads = 2;
      const std::vector<Result> results = RunEngine(model, options, prompts);
      std::printf("%s draft length %d: acceptance length %.2f, digest %016llx\n", compressor,
                  draft_length, results[0].acceptance_length(),
                  static_cast<unsigned long long>(results[0].logits_digest));
      EXPECT_EQ(Difference(full, results), "") << compressor << " draft length " << draft_length;
    }
  }
}

}  // namespace
}  // namespace vericache
