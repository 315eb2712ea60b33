// `bench serve` against our own server.
#include <string>

#include "cli/program.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

using nlohmann::json;

TEST(CliBenchServe, MeasuresALoad) {
  const std::string model =
      TinyGgufPath(
          {.vocabulary = 257, .context = 600, .byte_tokens = true, .never_last_token = true})
          .string();
  Program server({"serve", "-t", "1", "-m", model, "--port", "0", "--batch", "2", "--queue", "3"});
  ASSERT_TRUE(server.WaitForOutput(30));
  std::string url = server.Output();
  url.pop_back();
  const TempDir folder;
  const std::string text = (folder.path() / "text").string();
  const std::string trace = (folder.path() / "trace").string();
  const std::string plot = (folder.path() / "plot.svg").string();
  WriteText(text, "Caches of keys and values grow with every token.\n");
  const ProgramResult run = RunProgram({"bench", "serve", "--url", url, "--text", text,
                                        "--prompt-bytes", "100", "--max-tokens", "8", "--requests",
                                        "5", "--rate", "50", "--json", "--plot", plot});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json result = json::parse(run.out);
  EXPECT_EQ(result["complete"], 5);
  EXPECT_TRUE(result["errors"].empty()) << result;
  EXPECT_GT(result["tokens_per_s"], 0.0);
  EXPECT_GT(result["time to first token"]["p50"], 0.0);
  EXPECT_GE(result["end to end"]["p99"], result["end to end"]["p50"]);

  // Ten at once are more than the queue holds.
  const ProgramResult burst =
      RunProgram({"bench", "serve", "--url", url, "--text", text, "--prompt-bytes", "400",
                  "--max-tokens", "100", "--requests", "10"});
  EXPECT_EQ(burst.exit_code, 0) << burst.err;
  EXPECT_NE(burst.out.find("429"), std::string::npos) << burst.out;
  EXPECT_NE(burst.out.find("time to first token"), std::string::npos);

  WriteText(trace, "{\"at\": 0, \"prompt_bytes\": 50, \"max_tokens\": 3}\n{\"at\": 0.1}\n");
  const ProgramResult traced =
      RunProgram({"bench", "serve", "--url", url, "--text", text, "--prompt-bytes", "50", "--trace",
                  trace, "--max-tokens", "4", "--json"});
  EXPECT_EQ(json::parse(traced.out)["complete"], 2) << traced.out << traced.err;
  WriteText(trace, "{\"prompt_bytes\": 50}\n");
  const ProgramResult bad = RunProgram(
      {"bench", "serve", "--url", url, "--text", text, "--prompt-bytes", "50", "--trace", trace});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find(":1: not"), std::string::npos) << bad.err;
}

}  // namespace
}  // namespace vericache
