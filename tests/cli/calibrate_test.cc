// `calibrate kvquant`, and who finds what it wrote.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

class CliCalibrate : public testing::Test {
 protected:
  CliCalibrate() {
    std::filesystem::copy_file(
        TinyGgufPath({.vocabulary = 257, .context = 1024, .byte_tokens = true}), model_);
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "Line " + std::to_string(i * 7919 % 101) + " of a text.\n";
    }
    WriteText(text_, text);
  }

  ProgramResult Calibrate(std::vector<std::string> more) const {
    more.insert(more.begin(), {"calibrate", "kvquant", "-m", model_, "-t", "1"});
    return RunProgram(more);
  }
  ProgramResult Judge(const std::string& compressor) const {
    const std::string prompts = (folder_.path() / "prompts.jsonl").string();
    WriteText(prompts, "{\"prompt\": \"" + std::string(200, 'x') + "\"}\n");
    return RunProgram({"acceptance", "-m", model_, "-t", "1", "--prompts", prompts, "--new-tokens",
                       "20", "--draft-lengths", "4", "--compressors", compressor});
  }

  TempDir folder_;
  std::string model_ = (folder_.path() / "model.gguf").string();
  std::string text_ = (folder_.path() / "text.txt").string();
};

TEST_F(CliCalibrate, WritesAFileBesideTheModelWhichIsFoundThere) {
  const ProgramResult before = Judge("kvquant3");
  EXPECT_EQ(before.exit_code, 0) << before.err;
  EXPECT_NE(before.out.find("vericache calibrate kvquant"), std::string::npos) << before.out;

  const ProgramResult result = Calibrate({"--text", text_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, model_ + ".kvquant.json\n");
  std::ifstream file(model_ + ".kvquant.json");
  EXPECT_EQ(nlohmann::json::parse(file).at("layers").size(), 2U);

  const ProgramResult after = Judge("kvquant3");
  EXPECT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(after.out.find("vericache calibrate kvquant"), std::string::npos) << after.out;
}

TEST_F(CliCalibrate, WritesWhereItIsTold) {
  const std::string path = (folder_.path() / "levels.json").string();
  const ProgramResult result = Calibrate({"--text", text_, text_, "--out", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(std::filesystem::exists(model_ + ".kvquant.json"));
  const ProgramResult judged = Judge("kvquant3:levels=" + path);
  EXPECT_EQ(judged.exit_code, 0) << judged.err;
  EXPECT_EQ(judged.out.find("vericache calibrate"), std::string::npos) << judged.out;
}

TEST_F(CliCalibrate, SaysWhatIsWrongInOneLine) {
  const auto fails = [](const ProgramResult& result, const std::string& word) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.ErrorLines(), 1) << result.err;
    EXPECT_NE(result.err.find(word), std::string::npos) << result.err;
  };
  const std::string empty = (folder_.path() / "short.txt").string();
  WriteText(empty, "short");
  fails(Calibrate({"--text", empty}), "too little text");
  EXPECT_FALSE(std::filesystem::exists(model_ + ".kvquant.json"));
  fails(Calibrate({"--text", "/no/such/text"}), "/no/such/text");
  fails(Calibrate({"--text", text_, "--out", "/no/such/folder/x"}), "/no/such/folder/x");
  fails(Calibrate({}), "--text");
  fails(Judge("kvquant3:levels=/no/such/file"), "vericache calibrate kvquant -m MODEL --text FILE");
  WriteText(empty, "{}");
  fails(Judge("kvquant3:levels=" + empty), "is not a calibration");
  fails(RunProgram({"calibrate"}), "subcommand");
}

}  // namespace
}  // namespace vericache
