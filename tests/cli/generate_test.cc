// What `generate` and `doctor` print, and how they stop.
#include <chrono>
#include <csignal>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "support/real_text.h"

namespace vericache {
namespace {

using nlohmann::json;

std::string Tiny(int context = 2048) {
  return TinyGgufPath(
             {.vocabulary = 257, .context = context, .byte_tokens = true, .never_last_token = true})
      .string();
}

const char kText[] = "The quick brown fox jumps over the lazy dog, again and again.";

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

// The objects that `generate --json` prints; it must succeed.
std::vector<json> Objects(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "generate");
  arguments.emplace_back("--json");
  const ProgramResult result = RunProgram(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<json> objects;
  for (const std::string& line : Lines(result.out)) {
    objects.push_back(json::parse(line));
  }
  return objects;
}

TEST(CliHelp, HasExamples) {
  const ProgramResult generate = RunProgram({"generate", "--help"});
  EXPECT_EQ(generate.exit_code, 0);
  EXPECT_NE(generate.out.find("Examples:"), std::string::npos);
  EXPECT_NE(generate.out.find("vericache generate -m model.gguf"), std::string::npos);
  EXPECT_EQ(generate.err, "");
  const ProgramResult doctor = RunProgram({"doctor", "--help"});
  EXPECT_EQ(doctor.exit_code, 0);
  EXPECT_NE(doctor.out.find("Example"), std::string::npos);
  const ProgramResult both = RunProgram({"--help"});
  EXPECT_EQ(both.exit_code, 0);
  EXPECT_NE(both.out.find("generate"), std::string::npos);
  EXPECT_NE(both.out.find("doctor"), std::string::npos);
}

TEST(CliGenerate, JsonHasExactlyTheseKeys) {
  const std::set<std::string> expected = {"id",
                                          "text",
                                          "tokens",
                                          "prompt_tokens",
                                          "finish_reason",
                                          "policy",
                                          "compressor",
                                          "keep",
                                          "rounds",
                                          "drafted_tokens",
                                          "accepted_tokens",
                                          "reloads",
                                          "reused_compressed",
                                          "reused_tokens",
                                          "acceptance_length",
                                          "prefill_tokens_per_s",
                                          "decode_tokens_per_s",
                                          "full_cache_bytes",
                                          "compressed_cache_bytes",
                                          "fast_memory_peak_bytes",
                                          "logits_digest"};
  for (const char* policy : {"full", "lossy", "vericache"}) {
    const std::vector<json> objects =
        Objects({"-m", Tiny(), "-p", kText, "-n", "20", "-t", "1", "--policy", policy});
    ASSERT_EQ(objects.size(), 1U);
    std::set<std::string> keys;
    for (const auto& [key, value] : objects[0].items()) {
      keys.insert(key);
    }
    EXPECT_EQ(keys, expected);
    EXPECT_EQ(objects[0]["policy"], policy);
    EXPECT_EQ(objects[0]["prompt_tokens"], std::string(kText).size());
    EXPECT_EQ(objects[0]["logits_digest"].get<std::string>().size(), 16U);
    EXPECT_EQ(objects[0]["compressor"].is_null(), std::string(policy) == "full");
  }
}

TEST(CliGenerate, PoliciesAgreeAndTextIsTheSame) {
  const std::vector<std::string> base = {"-m", Tiny(), "-p", kText, "-n", "40", "-t", "1"};
  const auto with = [&base](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const json full = Objects(with({"--policy", "full"})).at(0);
  for (const char* compressor : {"none", "snapkv", "streamingllm", "kivi4", "snapkv+kivi2"}) {
    const json verified = Objects(with({"--compressor", compressor, "--draft-length", "5"})).at(0);
    EXPECT_EQ(verified["tokens"], full["tokens"]) << compressor;
    EXPECT_EQ(verified["text"], full["text"]) << compressor;
    EXPECT_EQ(verified["logits_digest"], full["logits_digest"]) << compressor;
  }
  std::vector<std::string> arguments = with({});
  arguments.insert(arguments.begin(), "generate");
  const ProgramResult text = RunProgram(arguments);
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.out, full["text"].get<std::string>() + "\n");
  EXPECT_EQ(text.ErrorLines(), 1) << text.err;
}

TEST(CliGenerate, PromptFromFileAndStandardInput) {
  const TempDir folder;
  WriteText(folder.path() / "prompt.txt", kText);
  const std::vector<std::string> tail = {"-n", "10", "-t", "1"};
  const auto run = [&](std::vector<std::string> arguments, const std::string& input) {
    arguments.insert(arguments.begin(), {"generate", "-m", Tiny()});
    arguments.insert(arguments.end(), tail.begin(), tail.end());
    return RunProgram(arguments, input).out;
  };
  const std::string expected = run({"-p", kText}, "");
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(run({"-f", (folder.path() / "prompt.txt").string()}, ""), expected);
  EXPECT_EQ(run({"-f", "-"}, kText), expected);
}

TEST(CliGenerate, PromptsInOrder) {
  const TempDir folder;
  const std::string list = (folder.path() / "prompts.jsonl").string();
  const std::string stats = (folder.path() / "stats.jsonl").string();
  WriteText(list,
            "{\"prompt\": \"first, which emits the most\", \"max_tokens\": 60}\n"
            "{\"id\": \"b\", \"prompt\": \"second\", \"max_tokens\": 3}\n\n"
            "{\"id\": 7, \"messages\": [{\"role\": \"user\", \"content\": \"third\"}]}\n"
            "{\"prompt\": \"fourth\"}\n");
  const std::vector<std::string> base = {"-m", Tiny(), "--prompts", list, "-n", "9", "-t", "1"};
  std::vector<std::string> arguments = base;
  arguments.insert(arguments.end(), {"--batch", "3", "--stats-json", stats});
  const std::vector<json> objects = Objects(arguments);
  ASSERT_EQ(objects.size(), 4U);
  EXPECT_EQ(objects[0]["id"], "0");
  EXPECT_EQ(objects[1]["id"], "b");
  EXPECT_EQ(objects[2]["id"], "7");
  EXPECT_EQ(objects[3]["id"], "3");
  EXPECT_EQ(objects[1]["tokens"].size(), 3U);
  EXPECT_LE(objects[3]["tokens"].size(), 9U);
  EXPECT_GT(objects[2]["prompt_tokens"], 10) << "the chat template is around it";

  arguments = base;
  arguments.insert(arguments.end(), {"--policy", "full"});
  const std::vector<json> full = Objects(arguments);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    EXPECT_EQ(objects[i]["tokens"], full[i]["tokens"]);
    EXPECT_EQ(objects[i]["logits_digest"], full[i]["logits_digest"]);
  }

  const ProgramResult file = RunProgram({"generate", "-m", Tiny(), "-p", "x", "-n", "2", "-t", "1",
                                         "--stats-json", "/no/such/folder/stats"});
  EXPECT_EQ(file.exit_code, 2) << file.err;
}

TEST(CliGenerate, ChatPutsTheTemplateAround) {
  const std::vector<std::string> base = {"-m", Tiny(), "-p", "hello", "-n", "5", "-t", "1"};
  std::vector<std::string> chat = base;
  chat.emplace_back("--chat");
  EXPECT_GT(Objects(chat).at(0)["prompt_tokens"], Objects(base).at(0)["prompt_tokens"]);
}

// Ctrl-C must end it within this time.
constexpr double kPatience = 20.0;  // others may want the cores too

void ExpectQuickStop(Program& program) {
  const auto start = std::chrono::steady_clock::now();
  program.Signal(SIGINT);
  const ProgramResult result = program.Wait();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_LT(seconds, kPatience);
  EXPECT_NE(result.err.find("interrupted"), std::string::npos);
}

TEST(CliInterrupt, DuringPrefill) {
  Program program({"generate", "-m", Tiny(200'000), "-f", "-", "-t", "1", "-n", "2"},
                  std::string(150'000, 'x'));
  ASSERT_TRUE(program.StillRunsAfter(1.5)) << program.Wait().err;
  ExpectQuickStop(program);
}

TEST(CliInterrupt, DuringDecode) {
  for (const char* policy : {"full", "vericache"}) {
    Program program({"generate", "-m", Tiny(200'000), "-p", kText, "-t", "1", "-n", "150000",
                     "--policy", policy});
    ASSERT_TRUE(program.WaitForOutput(30.0));
    ASSERT_TRUE(program.StillRunsAfter(0.2));
    ExpectQuickStop(program);
  }
}

TEST(CliDoctor, Runs) {
  const ProgramResult text = RunProgram({"doctor", "-m", Tiny(), "-t", "1"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("attention kernel"), std::string::npos);
  EXPECT_NE(text.out.find("f32"), std::string::npos);
  const ProgramResult result = RunProgram({"doctor", "-m", Tiny(), "-t", "1", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object["architecture"], "llama");
  EXPECT_EQ(object["weight_types"][0]["type"], "f32");
  EXPECT_TRUE(object["weight_types"][0]["exact"].get<bool>());
}

TEST(CliRealModel, PoliciesAgree) {
  const std::string model = EnvironmentPath("VERICACHE_TEST_MODEL");
  if (model.empty()) {
    GTEST_SKIP() << "VERICACHE_TEST_MODEL is not set";
  }
  const std::vector<std::string> base = {"-m", model, "-p", kText, "--chat", "-n", "24", "-t", "1"};
  std::vector<std::string> arguments = base;
  arguments.insert(arguments.end(), {"--policy", "full"});
  const json full = Objects(arguments).at(0);
  arguments = base;
  arguments.insert(arguments.end(), {"--compressor", "kivi4"});
  const json verified = Objects(arguments).at(0);
  EXPECT_EQ(verified["text"], full["text"]);
  EXPECT_EQ(verified["logits_digest"], full["logits_digest"]);
  EXPECT_FALSE(full["text"].get<std::string>().empty());
}

// A seed gives the same text under every policy, another one another text, and none a new one each
// time.
TEST(CliSampling, SeedsAreRepeatable) {
  const auto sampled = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "-m",   Tiny(),           "-p", kText, "-n", "30", "--temperature", "0.9", "--top-p",
        "0.95", "--draft-length", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Objects(arguments).at(0);
  };
  const json full = sampled({"--policy", "full", "--seed", "5"});
  const json drafted = sampled({"--policy", "vericache", "--keep", "0.2", "--seed", "5"});
  EXPECT_EQ(full["tokens"], drafted["tokens"]);
  EXPECT_EQ(full["logits_digest"], drafted["logits_digest"]);
  EXPECT_EQ(full["seed"], 5);
  EXPECT_EQ(full["temperature"], 0.9);
  EXPECT_NE(sampled({"--seed", "6"})["tokens"], full["tokens"]);
  const json one = sampled({});
  EXPECT_TRUE(one["seed"].is_null());
  EXPECT_NE(sampled({})["tokens"], one["tokens"]);
  const ProgramResult wrong = RunProgram({"generate", "-m", Tiny(), "-p", "x", "--top-p", "0"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("top_p"), std::string::npos) << wrong.err;
}

// What the built-in prompts are, and how well caches draft on them.
TEST(CliAcceptance, SaysHowWellCachesDraft) {
  const ProgramResult list = RunProgram({"workloads", "list"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_NE(list.out.find("extract"), std::string::npos);
  const std::vector<std::string> arguments = {"acceptance",
                                              "-m",
                                              Tiny(),
                                              "--workloads",
                                              "code-continue",
                                              "--context",
                                              "900",
                                              "--new-tokens",
                                              "24",
                                              "--draft-lengths",
                                              "4,8",
                                              "--keep",
                                              "0.5,0.1",
                                              "--compressors",
                                              "none",
                                              "snapkv",
                                              "k=q8,v=q4"};
  const ProgramResult table = RunProgram(arguments);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("k=q8,v=q4"), std::string::npos) << table.out;
  std::vector<std::string> as_json = arguments;
  as_json.emplace_back("--json");
  const ProgramResult result = RunProgram(as_json);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = json::parse(result.out);
  ASSERT_EQ(object["results"].size(), 2U * 4U);
  for (const json& each : object["results"]) {
    EXPECT_EQ(each["workload"], "code-continue");
    EXPECT_LE(each["acceptance_length"], each["x"]);
    if (each["compressor"] == "none") {
      EXPECT_EQ(each["acceptance_length"], each["x"]);
      EXPECT_EQ(each["argmax_agreement"], 1.0);
      EXPECT_EQ(each["bytes_ratio"], 1.0);
    }
  }
  EXPECT_EQ(RunProgram({"acceptance", "-m", Tiny(), "--workloads", "poem"}).exit_code, 2);
}

}  // namespace
}  // namespace vericache
