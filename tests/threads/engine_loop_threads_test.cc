// The engine's own thread, the link's, and those that ask, leave and look at the metrics: each
// answer is that of its prompt alone, and there is no data race (thread sanitizer). The engine
// computes on one thread, since the sanitizer does not see how those of ggml wait for each other.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/engine_loop.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;

constexpr int kClients = 6;
constexpr int kNewTokens = 12;

TinyModel AskedModel() {
  return {.embedding = 64,
          .feed_forward = 64,
          .vocabulary = 257,
          .context = 600,
          .byte_tokens = true,
          .never_last_token = true};
}

// A link that each full cache crosses, and kept prefixes: all threads have something to do.
EngineOptions Options() {
  EngineOptions options = VeriCacheOptions("kivi4", 1.0, 3);
  options.batch = 3;
  options.link_bandwidth = 1e9;
  options.prefixes = std::make_shared<PrefixStore>(PrefixStoreOptions{.memory = {64U << 20U}});
  return options;
}

Prompt PromptOf(int client) {
  return {.id = std::to_string(client),
          .tokens = RandomTokens(270, 256, static_cast<unsigned>(client)),
          .max_tokens = kNewTokens};
}

// All of an answer.
std::string TextOf(Answer& answer) {
  std::string text;
  while (true) {
    const std::optional<AnswerPart> part = answer.Next(milliseconds(20));
    text += part ? part->text : "";
    if (part && part->result) {
      EXPECT_EQ(part->result->finish_reason, FinishReason::kLength);
      return text;
    }
  }
}

TEST(EngineLoopThreads, AnswersAreThoseOfEachAlone) {
  const Model& model = LoadTiny(AskedModel());
  const Tokenizer tokenizer(TinyGgufPath(AskedModel()));
  std::vector<Prompt> prompts;
  for (int i = 0; i < kClients; ++i) {
    prompts.push_back(PromptOf(i));
  }
  const std::vector<Result> alone = RunFull(model, prompts);

  Metrics metrics;
  EngineLoop loop(model, tokenizer, Options(), kClients, metrics);
  std::atomic<bool> over{false};
  std::thread watcher([&] {
    while (!over) {
      EXPECT_NE(metrics.Text(), "");
      EXPECT_LE(metrics.recent().size(), 20U);
      EXPECT_EQ(loop.failure(), "");
    }
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const auto ask = [&] {
        return loop.Ask({.prompts = {PromptOf(i)}, .logprobs = 2, .drafts = i % 2 == 0});
      };
      if (i % 3 == 1) {  // leaves, at once or with the first news
        const std::unique_ptr<Answer> left = ask();
        if (i % 2 == 0) {
          left->Next(milliseconds(20));
        }
      }
      EXPECT_EQ(TextOf(*ask()), TextOfTokens(tokenizer, alone[static_cast<std::size_t>(i)].tokens));
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  over = true;
  watcher.join();
}

}  // namespace
}  // namespace vericache
