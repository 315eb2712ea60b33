// predict, simulate and bench from the command line.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

using nlohmann::json;

json Json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const ProgramResult result = RunProgram(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

TEST(CliPredict, SaysWhatTheEquationsGive) {
  const json object = Json({"predict", "--device", "rtx-pro-6000", "--model-shape", "mistral-24b",
                            "--context", "30500", "--batch", "6", "--acceptance", "0.85"});
  const double weights = 47.144e9;
  const double full = object["full_cache_bytes"].get<double>();
  EXPECT_EQ(full, 30500.0 * 163'840);
  EXPECT_NEAR(object["t_gpu_s"].get<double>(), (weights + 6 * full * (0.2 + 1.0 / 25)) / 1.6e12,
              1e-6);
  EXPECT_NEAR(object["t_xfer_s"].get<double>(), 6 * full / 25 / 64e9, 1e-6);
  EXPECT_EQ(object["t_iter_s"], object["t_gpu_s"]);
  EXPECT_NEAR(object["tokens_per_s"].get<double>(),
              6 * (0.85 * 25 + 1) / 26 / object["t_iter_s"].get<double>(), 1e-3);
  EXPECT_GT(object["speedup"].get<double>(), 1.0);
  for (const char* key : {"batch", "critical_ratio", "best_draft_length", "advice", "remote"}) {
    EXPECT_TRUE(object.contains(key)) << key;
  }
}

TEST(CliPredict, TakesAGgufAndADoctorsDevice) {
  const std::string model = TinyGgufPath({}).string();
  const TempDir folder;
  const std::string device = (folder.path() / "here.json").string();
  std::ofstream(device) << Json({"doctor", "-m", model, "-t", "1"}).dump();
  const json object = Json({"predict", "--device", device, "-m", model, "--context", "100",
                            "--batch", "2", "--draft-length", "best"});
  EXPECT_EQ(object["full_cache_bytes"], 100 * 2 * 2 * 64 * 4);
  EXPECT_EQ(object["draft_length"], object["best_draft_length"]);
  EXPECT_GT(object["tokens_per_s"].get<double>(), 0.0);
}

// What `auto` chose is what every later run takes.
TEST(CliWeights, AutoIsRemembered) {
  const TempDir folder;
  const std::string model = TinyGgufPath({}).string();
  setenv("VERICACHE_CACHE", folder.path().c_str(), 1);
  const auto type = [&] {
    const json object = Json({"doctor", "-m", model, "-t", "1", "--weights", "auto"});
    return object["weight_types"][0]["type"].get<std::string>();
  };
  const std::string chosen = type();
  const std::filesystem::path memory =
      std::filesystem::directory_iterator(folder.path() / "weights")->path();
  const auto remembered = [&memory] {
    std::string name;
    std::ifstream(memory) >> name;
    // None of the tiny model's own f32 matrices packs, converted ones may.
    return name == "as-is" || name == "packed" ? std::string("f32")
                                               : name.substr(0, name.find("-packed"));
  };
  EXPECT_EQ(remembered(), chosen);
  for (const std::string other : {"bf16", "q8_0"}) {
    std::ofstream(memory) << other;
    EXPECT_EQ(type(), other);
  }
  // What cannot be read is measured anew, and may then be another one where two are close.
  std::ofstream(memory) << "what?";
  const std::string again = type();
  EXPECT_EQ(remembered(), again);
  unsetenv("VERICACHE_CACHE");
}

TEST(CliPredict, AdvisesInASentence) {
  const ProgramResult good = RunProgram(
      {"predict", "--model-shape", "mistral-24b", "--context", "50000", "--draft-length", "best"});
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_NE(good.out.find("Use VeriCache here"), std::string::npos) << good.out;
  const ProgramResult bad =
      RunProgram({"predict", "--model-shape", "qwen-8b", "--context", "500", "--batch", "1"});
  EXPECT_NE(bad.out.find("Do not use VeriCache here"), std::string::npos) << bad.out;
  const ProgramResult none = RunProgram({"predict", "--model-shape", "llama-70b"});
  EXPECT_NE(none.out.find("Not even one request fits"), std::string::npos) << none.out;
}

TEST(CliSimulate, PlaysAndDraws) {
  const TempDir folder;
  const std::string picture = (folder.path() / "timeline.svg").string();
  const json all = Json({"simulate", "--model-shape", "mistral-24b", "--context", "25000",
                         "--requests", "10", "--new-tokens", "100", "--policy",
                         "vericache,lockstep", "--timeline", picture, "--timeline-end", "2"});
  ASSERT_EQ(all["results"].size(), 2U);
  EXPECT_EQ(all["results"][0]["policy"], "vericache");
  EXPECT_EQ(all["results"][0]["tokens"], 1000);
  EXPECT_GT(all["results"][0]["tokens_per_s"], all["results"][1]["tokens_per_s"]);
  for (const char* policy : {"vericache", "lockstep"}) {
    std::ifstream file(folder.path() / (std::string(policy) + "-timeline.svg"));
    const std::string svg{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(svg.find("request 9"), std::string::npos) << policy;
    EXPECT_NE(svg.find("</svg>"), std::string::npos) << policy;
  }
}

std::uint32_t BigEndian(const std::string& bytes, std::size_t at) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    number = number << 8U | static_cast<unsigned char>(bytes.at(at + i));
  }
  return number;
}

// The same picture at twice the size.
TEST(CliSimulate, DrawsPngsToo) {
  const TempDir folder;
  const auto draw = [&folder](const std::string& name) {
    const std::string path = (folder.path() / name).string();
    Json({"simulate", "--model-shape", "mistral-24b", "--context", "25000", "--requests", "10",
          "--new-tokens", "100", "--policy", "vericache", "--timeline", path});
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const std::string svg = draw("timeline.svg");
  const std::string png = draw("timeline.png");
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_NE(svg.find("width=\"" + std::to_string(BigEndian(png, 16) / 2) + "\" height=\"" +
                     std::to_string(BigEndian(png, 20) / 2) + "\""),
            std::string::npos);
  EXPECT_GT(png.size(), 20'000U);  // an empty one has a fifth
}

TEST(CliSimulate, RefusesNonsense) {
  const auto fails = [](const std::vector<std::string>& arguments, const std::string& word) {
    const ProgramResult result = RunProgram(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find(word), std::string::npos) << result.err;
  };
  fails({"simulate"}, "--model-shape");
  fails({"simulate", "--model-shape", "gpt"}, "mistral-24b");
  fails({"simulate", "--model-shape", "qwen-8b", "--device", "abacus"}, "gh200");
  fails({"simulate", "--model-shape", "qwen-8b", "--policy", "full,magic"}, "magic");
  fails({"simulate", "--model-shape", "qwen-8b", "--requests", "0"}, "--requests");
  fails({"simulate", "--model-shape", "llama-70b"}, "does not fit");
  fails({"simulate", "--model-shape", "mistral-24b", "--timeline", "picture.jpg"}, ".png");
  fails({"predict", "--model-shape", "qwen-8b", "--batch", "few"}, "few");
  fails({"predict", "--model-shape", "qwen-8b", "--draft-length", "0"}, "--draft-length");
  fails({"predict", "--model-shape", "qwen-8b", "--acceptance", "1.5"}, "1.5");
  fails({"predict", "--model-shape", "qwen-8b", "--compression", "0"}, "--compression");
}

TEST(CliBench, MeasuresEveryPolicy) {
  const std::string model =
      TinyGgufPath(
          {.vocabulary = 257, .context = 4000, .byte_tokens = true, .never_last_token = true})
          .string();
  const TempDir folder;
  const std::string text = (folder.path() / "text").string();
  std::ofstream(text) << std::string(500, 'a') << std::string(300, 'b');
  const json all = Json({"bench", "throughput", "-m", model, "--text", text, "--context", "300",
                         "--batch", "1,2", "--policies", "full,lossy,vericache,lockstep",
                         "--new-tokens", "8", "-t", "1", "--link-bandwidth", "1GB/s"});
  ASSERT_EQ(all["results"].size(), 8U);
  for (const json& result : all["results"]) {
    EXPECT_GT(result["decode_tokens_per_s"].get<double>(), 0.0);
    EXPECT_EQ(result["reloads"].get<int>() > 0,
              result["policy"] == "vericache" || result["policy"] == "lockstep");
  }
  const ProgramResult result = RunProgram(
      {"bench", "throughput", "-m", model, "--text", text, "--context", "3000", "-t", "1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("800"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace vericache
