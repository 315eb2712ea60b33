// `serve` as its operator sees it: options, signals, and other people's clients.
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

using nlohmann::json;

std::string Tiny() {
  return TinyGgufPath(
             {.vocabulary = 257, .context = 600, .byte_tokens = true, .never_last_token = true})
      .string();
}

class Serving {
 public:
  explicit Serving(std::vector<std::string> arguments) : program_(WithMore(std::move(arguments))) {
    EXPECT_TRUE(program_.WaitForOutput(30));
    url_ = program_.Output();
    EXPECT_TRUE(url_.starts_with("http://127.0.0.1:")) << url_;
    url_.pop_back();
  }

  Program& program() { return program_; }
  const std::string& url() const { return url_; }
  httplib::Client Client() const {
    httplib::Client client(url_);
    client.set_read_timeout(60);
    return client;
  }

 private:
  static std::vector<std::string> WithMore(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"serve", "-t", "1"});
    return arguments;
  }

  Program program_;
  std::string url_;
};

TEST(CliServe, OptionsComeFromTheLineAFileAndVariables) {
  const TempDir folder;
  const std::string file = (folder.path() / "serve.toml").string();
  WriteText(file, "model = \"" + Tiny() + "\"\nport = 0\nmodel-name = \"of the file\"\n[serve]\n" +
                      "context = 500\n");
  setenv("VERICACHE_MODEL_NAME", "of the variable", 1);
  setenv("VERICACHE_MAX_TOKENS", "3", 1);
  {
    const Serving serving({"--config", file, "--context", "400"});
    const json model = json::parse(serving.Client().Get("/v1/models")->body)["data"][0];
    EXPECT_EQ(model["id"], "of the file");
    EXPECT_EQ(model["max_model_len"], 400);
    const auto answer =
        serving.Client().Post("/v1/completions", R"({"prompt": "x"})", "application/json");
    EXPECT_EQ(json::parse(answer->body)["usage"]["completion_tokens"], 3);
  }
  unsetenv("VERICACHE_MODEL_NAME");
  unsetenv("VERICACHE_MAX_TOKENS");
}

TEST(CliServe, FinishesWhatWasAskedAtASignal) {
  Serving serving({"-m", Tiny(), "--port", "0", "--compressor", "kivi4"});
  std::string streamed;
  bool signalled = false;
  const auto response =
      serving.Client().Post("/v1/completions", httplib::Headers{},
                            R"({"prompt": "x", "max_tokens": 500, "stream": true, "seed": 1})",
                            "application/json", [&](const char* data, std::size_t size) {
                              streamed.append(data, size);
                              if (!signalled) {
                                signalled = true;
                                serving.program().Signal(SIGTERM);
                              }
                              return true;
                            });
  EXPECT_TRUE(response);
  EXPECT_TRUE(streamed.ends_with("data: [DONE]\n\n"));
  EXPECT_NE(streamed.find("\"finish_reason\":\"length\""), std::string::npos);
  const ProgramResult result = serving.program().Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(serving.Client().Get("/health"));
}

TEST(CliServe, EndsAtOnceAtASecondSignal) {
  Serving serving({"-m", Tiny(), "--port", "0", "--link-bandwidth", "1MB/s"});
  std::thread client([&] {
    serving.Client().Post("/v1/completions",
                          R"({"prompt": ")" + std::string(300, 'x') + R"(", "max_tokens": 200})",
                          "application/json");
  });
  while (serving.Client().Get("/metrics")->body.find("vericache_num_requests_running 1") ==
         std::string::npos) {
  }
  serving.program().Signal(SIGTERM);
  EXPECT_TRUE(serving.program().StillRunsAfter(0.3)) << "an answer is not complete";
  serving.program().Signal(SIGTERM);
  EXPECT_EQ(serving.program().Wait().exit_code, 130);
  client.join();
}

TEST(CliServe, RefusesWhatItCannotDo) {
  const auto fails = [](std::vector<std::string> arguments, const std::string& word) {
    arguments.insert(arguments.begin(), "serve");
    const ProgramResult result = RunProgram(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.ErrorLines(), 1) << result.err;
    EXPECT_NE(result.err.find(word), std::string::npos) << result.err;
  };
  fails({}, "--model");
  fails({"-m", Tiny(), "--context", "601"}, "600");
  fails({"-m", Tiny(), "--port", "65536"}, "--port");
  fails({"-m", Tiny(), "--host", "192.0.2.1", "--port", "0"}, "192.0.2.1");
  fails({"-m", Tiny(), "--body-limit", "much"}, "much");
  fails({"-m", Tiny(), "--config", "/no/such/file"}, "/no/such/file");
  const TempDir folder;
  WriteText(folder.path() / "serve.toml", "color = \"red\"\n");
  fails({"-m", Tiny(), "--config", (folder.path() / "serve.toml").string()}, "color");
}

// The official client of OpenAI's API, as it comes.
TEST(CliServe, OpenAisOwnClientIsAtHome) {
  const char* python = std::getenv("VERICACHE_OPENAI_PYTHON");
  if (python == nullptr) {
    GTEST_SKIP() << "VERICACHE_OPENAI_PYTHON names no Python that has the package openai";
  }
  Serving serving({"-m", Tiny(), "--port", "0", "--model-name", "tiny", "--api-key", "secret",
                   "--compressor", "kivi4"});
  const std::string command =
      std::string(python) + " " VERICACHE_SOURCE_DIR "/tests/cli/openai_client.py " + serving.url();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

// A link, so that full caches are in fast memory for a while only; slow, so that figures are seen
// to move.
TEST(CliServe, DashboardShowsWhatHappens) {
  if (std::system("command -v chromium-headless-shell || command -v chromium") != 0) {
    GTEST_SKIP() << "there is no chromium-headless-shell, and no chromium";
  }
  Serving serving({"-m", Tiny(), "--port", "0", "--model-name", "tiny", "--compressor", "kivi4",
                   "--draft-length", "4", "--link-bandwidth", "5MB/s"});
  const std::string command =
      "python3 " VERICACHE_SOURCE_DIR "/tests/cli/dashboard.py " + serving.url();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(CliServe, CurlIsServed) {
  Serving serving({"-m", Tiny(), "--port", "0"});
  const std::string command =
      "curl --silent --fail --no-buffer " + serving.url() +
      "/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], "
      "\"max_tokens\": 5, \"stream\": true}' | tail -n 2 | grep -qx 'data: \\[DONE\\]'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace vericache
