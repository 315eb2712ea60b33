// `train kvzap`, and who finds what it wrote.
#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

constexpr int kContext = 2048;

class CliTrain : public testing::Test {
 protected:
  CliTrain() {
    std::filesystem::copy_file(
        TinyGgufPath({.vocabulary = 257, .context = kContext, .byte_tokens = true}), model_);
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "Line " + std::to_string(i * 7919 % 101) + " of a text.\n";
    }
    WriteText(text_, text);
  }

  ProgramResult Train(std::vector<std::string> more) const {
    more.insert(more.begin(), {"train", "kvzap", "-m", model_, "-t", "1", "--epochs", "2"});
    return RunProgram(more);
  }
  ProgramResult Generate(const std::string& compressor) const {
    return RunProgram({"generate", "-m", model_, "-t", "1", "-p", std::string(200, 'x'),
                       "--max-tokens", "20", "--keep", "0.3", "--compressor", compressor});
  }

  TempDir folder_;
  std::string model_ = (folder_.path() / "model.gguf").string();
  std::string text_ = (folder_.path() / "text.txt").string();
};

TEST_F(CliTrain, WritesAFileBesideTheModelWhichIsFoundThere) {
  const ProgramResult before = Generate("kvzap");
  EXPECT_EQ(before.exit_code, 2);
  EXPECT_EQ(before.ErrorLines(), 1) << before.err;
  EXPECT_NE(before.err.find("vericache train kvzap"), std::string::npos) << before.err;

  const ProgramResult result = Train({"--text", text_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find(model_ + ".kvzap.gguf\n"), 0U) << result.out;
  EXPECT_NE(result.out.find('%'), std::string::npos) << result.out;

  const ProgramResult full = Generate("none");
  for (const char* name : {"kvzap", "kvzap+kivi4"}) {
    const ProgramResult after = Generate(name);
    EXPECT_EQ(after.exit_code, 0) << after.err;
    EXPECT_EQ(after.out, full.out);
  }
}

TEST_F(CliTrain, WritesWhereItIsTold) {
  const std::string path = (folder_.path() / "network.gguf").string();
  EXPECT_EQ(Train({"--text", text_, "--out", path}).exit_code, 0);
  EXPECT_EQ(Generate("kvzap").exit_code, 2);
  EXPECT_EQ(Generate("kvzap:network=" + path).exit_code, 0);
}

TEST_F(CliTrain, RefusesWhatIsNoNetworkForTheModel) {
  const std::string path = (folder_.path() / "network.gguf").string();
  WriteText(path, "something else");
  const ProgramResult text = Generate("kvzap:network=" + path);
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_NE(text.err.find("not a GGUF"), std::string::npos) << text.err;
  const ProgramResult model = Generate("kvzap:network=" + model_);
  EXPECT_EQ(model.exit_code, 2);
  EXPECT_NE(model.err.find("layers.0.up.weight"), std::string::npos) << model.err;

  const std::string other = (folder_.path() / "other.gguf").string();
  std::filesystem::copy_file(
      TinyGgufPath({.layers = 3, .vocabulary = 257, .context = kContext, .byte_tokens = true}),
      other);
  EXPECT_EQ(RunProgram({"train", "kvzap", "-m", other, "-t", "1", "--epochs", "1", "--text", text_,
                        "--out", path})
                .exit_code,
            0);
  const ProgramResult layers = Generate("kvzap:network=" + path);
  EXPECT_EQ(layers.exit_code, 2);
  EXPECT_NE(layers.err.find("2 layers"), std::string::npos) << layers.err;

  WriteText(text_, "short");
  const ProgramResult little = Train({"--text", text_});
  EXPECT_EQ(little.exit_code, 2);
  EXPECT_NE(little.err.find("too little text"), std::string::npos) << little.err;
}

}  // namespace
}  // namespace vericache
