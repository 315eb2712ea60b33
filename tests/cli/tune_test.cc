// `tune`, and what takes the profiles that it writes.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

class CliTune : public testing::Test {
 protected:
  CliTune() {
    std::filesystem::copy_file(
        TinyGgufPath({.vocabulary = 257, .context = 1024, .byte_tokens = true}), model_);
    WriteText(prompts_,
              "{\"prompt\": \"" + std::string(150, 'x') + std::string(150, 'y') + "\"}\n");
  }

  ProgramResult Tune(std::vector<std::string> more) const {
    const std::vector<std::string> all = {
        "tune",   "-m",          model_,    "-t",           "1",  "--prompts",
        prompts_, "--positions", "300",     "--new-tokens", "16", "--draft-length",
        "4",      "--keep",      "0.5,0.2", "-o",           base_};
    more.insert(more.begin(), all.begin(), all.end());
    return RunProgram(more);
  }
  ProgramResult Generate(const std::string& compressor) const {
    return RunProgram({"generate", "-m", model_, "-t", "1", "-p", std::string(300, 'z'),
                       "--max-tokens", "20", "--json", "--compressor", compressor});
  }

  TempDir folder_;
  std::string model_ = (folder_.path() / "model.gguf").string();
  std::string prompts_ = (folder_.path() / "prompts.jsonl").string();
  std::string base_ = (folder_.path() / "mine").string();
};

TEST_F(CliTune, WritesProfilesThatFitTheirBudgets) {
  const ProgramResult result = Tune({"--bytes", "0.3,0.6", "--scorers", "snapkv", "streamingllm"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = [](const ProgramResult& run) { return nlohmann::json::parse(run.out); };
  const auto full = json(Generate("none"));
  double before = 0.0;
  for (const char* budget : {"0.30", "0.60"}) {
    const std::string path = base_ + "-" + budget + ".json";
    std::ifstream file(path);
    const auto profile = nlohmann::json::parse(file);
    EXPECT_EQ(profile["layers"].size(), 2U);
    const auto run = json(Generate("profile:" + path));
    EXPECT_EQ(run["text"], full["text"]);
    const double bytes = run["compressed_cache_bytes"].get<double>();
    EXPECT_GT(bytes, before);
    before = bytes;
  }
  // Of 300 positions and 20 new ones, whose slots are plain: a page's worth more.
  EXPECT_LT(before, 0.6 * full["full_cache_bytes"].get<double>() * 1.5);
}

TEST_F(CliTune, SaysWhatIsWrongInOneLine) {
  const auto fails = [](const ProgramResult& result, const std::string& word) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.ErrorLines(), 1) << result.err;
    EXPECT_NE(result.err.find(word), std::string::npos) << result.err;
  };
  fails(Tune({"--bytes", "0.001"}), "smaller keep ratios");
  EXPECT_FALSE(std::filesystem::exists(base_ + "-0.00.json"));
  fails(Tune({"--scorers", "magic"}), "magic");
  fails(Tune({"--scorers", "kvzap"}), "vericache train kvzap");
}

}  // namespace
}  // namespace vericache
