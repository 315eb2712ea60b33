// What a user can do wrong: exit code 2, one line that says what, nothing on standard output.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

class CliErrors : public testing::Test {
 protected:
  // A model with a vocabulary of bytes: a prompt has as many tokens as bytes.
  static std::string Tiny() {
    return TinyGgufPath({.vocabulary = 257, .context = 600, .byte_tokens = true}).string();
  }
  static std::string Text(const std::string& name, const std::string& text) {
    static const TempDir folder;
    WriteText(folder.path() / name, text);
    return (folder.path() / name).string();
  }

  // `generate` with one thread must fail with all of `words` in its message.
  static void Fails(std::vector<std::string> arguments, const std::vector<std::string>& words,
                    const std::string& input = "", long address_space_kib = 0) {
    arguments.insert(arguments.begin(), {"generate", "-t", "1"});
    FailsAs(arguments, words, input, address_space_kib);
  }
  static void FailsAs(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& words, const std::string& input = "",
                      long address_space_kib = 0) {
    std::string command;
    for (const std::string& argument : arguments) {
      command.append(argument).append(" ");
    }
    const ProgramResult result = RunProgram(arguments, input, address_space_kib);
    EXPECT_EQ(result.exit_code, 2) << command << "\n" << result.err;
    EXPECT_EQ(result.out, "") << command;
    EXPECT_EQ(result.ErrorLines(), 1) << command << "\n" << result.err;
    for (const std::string& word : words) {
      EXPECT_NE(result.err.find(word), std::string::npos)
          << command << "\nmisses '" << word << "' in: " << result.err;
    }
  }
};

TEST_F(CliErrors, ModelFile) {
  Fails({"-m", "/no/such/file.gguf", "-p", "x"}, {"/no/such/file.gguf", "no such file"});
  Fails({"-m", "/", "-p", "x"}, {"not a file"});
  Fails({"-m", Text("text.gguf", "once upon a time"), "-p", "x"}, {"not a GGUF"});
  Fails({"-m", Text("empty.gguf", ""), "-p", "x"}, {"not a GGUF"});
  std::ifstream whole_file(Tiny(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(whole_file), {}};
  for (const std::size_t size :
       {std::size_t{4}, std::size_t{20}, std::size_t{200}, std::size_t{3000}}) {
    Fails({"-m", Text("head.gguf", whole.substr(0, size)), "-p", "x"}, {"damaged or cut off"});
  }
  Fails({"-m", Text("data.gguf", whole.substr(0, whole.size() / 2)), "-p", "x"}, {"cut off"});
  Fails({"-m", Text("last.gguf", whole.substr(0, whole.size() - 100)), "-p", "x"}, {"cut off"});
  Fails({"-p", "x"}, {"--model"});
}

TEST_F(CliErrors, ModelKind) {
  Fails({"-m", TinyGgufPath({.architecture = "gemma3"}).string(), "-p", "x"},
        {"gemma3", "llama", "qwen2", "qwen3"});
  Fails({"-m", TinyGgufPath({.integers = {{"llama.expert_count", 8}}}).string(), "-p", "x"},
        {"experts"});
  Fails({"-m",
         TinyGgufPath(
             {.architecture = "qwen2", .integers = {{"qwen2.attention.sliding_window", 4096}}})
             .string(),
         "-p", "x"},
        {"sliding window"});
  Fails(
      {"-m",
       TinyGgufPath({.rope = TinyRope::kYarn, .strings = {{"llama.rope.scaling.type", "longrope"}}})
           .string(),
       "-p", "x"},
      {"longrope"});
  Fails({"-m", TinyGgufPath({}).string(), "-p", "x"}, {"vocabulary"});
  // Values that ggml would not survive.
  for (const int dims : {0, 3, 1000}) {
    Fails({"-m", TinyGgufPath({.integers = {{"llama.rope.dimension_count", dims}}}).string(), "-p",
           "x"},
          {"RoPE"});
  }
  Fails({"-m", TinyGgufPath({.vocabulary = 256, .context = 600, .byte_tokens = true}).string(),
         "-p", "x"},
        {"257 tokens", "256"});
}

TEST_F(CliErrors, Prompt) {
  Fails({"-m", Tiny()}, {"no prompt"});
  Fails({"-m", Tiny(), "-p", ""}, {"prompt is empty"});
  Fails({"-m", Tiny(), "-f", Text("empty.txt", "")}, {"prompt is empty"});
  Fails({"-m", Tiny(), "-f", "-"}, {"prompt is empty"});
  Fails({"-m", Tiny(), "-f", "/no/such/prompt"}, {"/no/such/prompt", "no such file"});
  Fails({"-m", Tiny(), "-f", "/"}, {"folder"});
  Fails({"-m", Tiny(), "-p", std::string(601, 'x')}, {"601", "600"});
  Fails({"-m", Tiny(), "-p", "x", "-f", "y"}, {"--prompt"});
  Fails({"-m", Tiny(), "-p", "x", "--prompts", "y"}, {"--prompt"});
  Fails({"-m", Tiny(), "-f", "x", "--prompts", "y"}, {"--prompt"});
}

TEST_F(CliErrors, PromptLists) {
  const auto fails = [](const std::string& lines, const std::vector<std::string>& words) {
    Fails({"-m", Tiny(), "--prompts", Text("prompts.jsonl", lines)}, words);
  };
  const std::string good = "{\"prompt\": \"x\"}\n";
  fails(good + "{\"prompt\": \n", {"prompts.jsonl:2:", "JSON"});
  fails(good + "\n[1]\n", {"prompts.jsonl:3:", "object"});
  fails(good + good + "{\"promt\": \"x\"}\n", {"prompts.jsonl:3:", "promt"});
  fails("{}\n", {"prompts.jsonl:1:", "prompt"});
  fails("{\"prompt\": 5}\n", {"prompts.jsonl:1:"});
  fails("{\"prompt\": \"x\", \"max_tokens\": 0}\n", {"prompts.jsonl:1:", "max_tokens"});
  fails("{\"messages\": [{\"role\": \"user\"}]}\n", {"prompts.jsonl:1:", "content"});
  fails("\n \n", {"no prompts"});
  fails(good + "{\"id\": \"long\", \"prompt\": \"" + std::string(700, 'x') + "\"}\n",
        {"long", "700", "600"});
  fails("{\"prompt\": \"\"}\n", {"empty"});
  fails("{\"id\": 1, \"prompt\": \"x\"}\n" + good, {"prompts.jsonl:2:", "\"1\""});
}

TEST_F(CliErrors, Options) {
  const std::vector<std::string> base = {"-m", Tiny(), "-p", "x"};
  const auto fails = [&base](const std::vector<std::string>& more,
                             const std::vector<std::string>& words) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), more.begin(), more.end());
    Fails(arguments, words);
  };
  fails({"--compressor", "zip"}, {"zip", "none", "streamingllm", "snapkv", "kivi4", "kivi2"});
  fails({"--compressor", "snapkv+snapkv"}, {"snapkv"});
  fails({"--compressor", ""}, {"compressor"});
  fails({"--policy", "magic"}, {"magic", "full", "lossy", "vericache"});
  for (const char* keep : {"0", "-1", "1.5", "nan", "inf"}) {
    fails({"--keep", keep}, {"--keep"});
  }
  fails({"--keep", "half"}, {"--keep"});
  fails({"--draft-length", "0"}, {"--draft-length"});
  fails({"--batch", "0"}, {"--batch"});
  fails({"--prefill-chunk", "0"}, {"--prefill-chunk"});
  fails({"-n", "0"}, {"--max-tokens"});
  fails({"-n", "-5"}, {"--max-tokens"});
  fails({"--fast-memory", "lots"}, {"lots"});
  fails({"--no-such-option"}, {"--no-such-option"});
  FailsAs({"generate", "-m", Tiny(), "-p", "x", "--threads", "0"}, {"--threads"});
  FailsAs({"doctor", "-m", Tiny(), "--threads", "0"}, {"--threads"});
  FailsAs({"doctor", "-m", "/no/such/file"}, {"no such file"});
  FailsAs({"generate", "-m", Tiny(), "-p", "x", "--threads", "100000"}, {"--threads", "512"});
  FailsAs({"doctor", "-m", Tiny(), "--threads", "100000"}, {"--threads"});
  fails({"--draft-length", "1000000"}, {"--draft-length", "1024"});
  fails({"--draft-length", "4x"}, {"4x", "auto"});
  fails({"--full-store", "tape"}, {"tape", "memory", "disk:PATH"});
  fails({"--full-store", "disk:/dev/null/x"}, {"/dev/null/x"});
  fails({"--weights", "int4"}, {"int4", "as-is", "packed", "q8_0", "bf16", "auto"});
  FailsAs({"doctor", "-m", Tiny(), "--weights", "int4"}, {"int4"});
  fails({"--link-bandwidth", "fast"}, {"--link-bandwidth", "fast"});
  fails({"--link-bandwidth", "500"}, {"--link-bandwidth", "500MB/s"});
  fails({"--link-bandwidth", "0"}, {"--link-bandwidth"});
  fails({"--weights-share", "2"}, {"--weights-share"});
  fails({"--weights-share", "1", "--fast-memory", "1KiB"}, {"weights", "1.0 KiB"});
  fails({"--stats-json", "/no/such/folder/x"}, {"/no/such/folder/x"});
  FailsAs({"destroy"}, {"destroy"});
  FailsAs({}, {"subcommand"});
}

TEST_F(CliErrors, NameTheCommandWhoseHelpTellsMore) {
  Fails({"-m", Tiny(), "-p", "x", "--bogus"}, {"--bogus", "(see vericache generate --help)"});
  FailsAs({"bench", "serve", "--bogus"}, {"(see vericache bench serve --help)"});
  FailsAs({"bench"}, {"(see vericache bench --help)"});
}

TEST_F(CliErrors, Memory) {
  Fails({"-m", Tiny(), "-p", std::string(500, 'x'), "--fast-memory", "64KiB", "--policy", "full"},
        {"too little fast memory", "KiB", "64.0 KiB"});
  Fails({"-m", Tiny(), "-p", std::string(500, 'x'), "--fast-memory", "1KiB"},
        {"too little fast memory"});
  // `ulimit -v`: enough for the program and the model, not for the cache of this context.
  const std::string roomy =
      TinyGgufPath({.vocabulary = 257, .context = 1 << 22, .byte_tokens = true}).string();
  Fails({"-m", roomy, "-p", "x", "-n", "4000000", "--policy", "full"},
        {"too little fast memory", "3.8 GiB"}, "", 600'000);
  Fails({"-m", roomy, "-p", "x", "-n", "4000000"}, {"too little fast memory", "3.8 GiB"}, "",
        600'000);
  // Not enough for the weights.
  const std::string large = TinyGgufPath({.layers = 3,
                                          .heads = 16,
                                          .kv_heads = 16,
                                          .embedding = 1024,
                                          .feed_forward = 4096,
                                          .vocabulary = 257,
                                          .byte_tokens = true})
                                .string();
  Fails({"-m", large, "-p", "x"}, {"memory", "weights"}, "", 150'000);
}

}  // namespace
}  // namespace vericache
