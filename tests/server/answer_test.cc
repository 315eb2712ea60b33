// The pieces between the engine's thread and a client: text up to a stop string, the stream of
// parts, log probabilities.
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck.h"
#include "rapidcheck/gtest.h"
#include "server/answer_stream.h"
#include "server/answer_text.h"
#include "server/logprobs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;

const Tokenizer& Bytes256() {
  static const Tokenizer tokenizer(TinyGgufPath({.vocabulary = 257, .byte_tokens = true}));
  return tokenizer;
}

// What is taken after each byte of `text`, joined by '|', and at the end.
std::string Taken(const std::string& text, const std::vector<std::string>& stop) {
  AnswerText answer(Bytes256(), stop);
  std::string taken;
  for (const char byte : text) {
    if (answer.Add(Bytes256().Encode(std::string(1, byte), false).back())) {
      break;
    }
    taken += answer.Take() + "|";
  }
  answer.Finish();
  return taken + answer.Take();
}

TEST(AnswerText, EndsBeforeTheFirstStopString) {
  EXPECT_EQ(Taken("abc", {}), "a|b|c|");
  EXPECT_EQ(Taken("abcd", {"cd"}), "a|b||");
  EXPECT_EQ(Taken("abce", {"cd"}), "a|b||ce|");
  EXPECT_EQ(Taken("abc", {"cd"}), "a|b||c");
  EXPECT_EQ(Taken("aabaac", {"aac"}), "||aab|||");
  EXPECT_EQ(Taken("xyz", {"yz", "xy"}), "|");
}

// However it comes, the text is that up to the first stop string, and nothing of a stop string is
// ever taken.
RC_GTEST_PROP(AnswerText, IsTheTextUpToTheFirstStopString, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b'));
  const std::string text = *letters;
  std::vector<std::string> stop = *rc::gen::container<std::vector<std::string>>(letters);
  std::erase(stop, "");
  std::string expected = text;
  for (std::size_t end = 0; end <= text.size(); ++end) {  // a stop ends it as soon as it is there
    std::size_t first = std::string::npos;
    for (const std::string& each : stop) {
      first = std::min(first, text.substr(0, end).find(each));
    }
    if (first != std::string::npos) {
      expected = text.substr(0, first);
      break;
    }
  }
  std::string taken = Taken(text, stop);
  std::erase(taken, '|');
  RC_ASSERT(taken == expected);
}

TEST(AnswerStream, JoinsPartsThatWait) {
  AnswerStream stream;
  EXPECT_FALSE(stream.Next(milliseconds(1)));
  stream.Push({.choice = 0, .tokens = 1, .text = "a", .drafted = "x"});
  stream.Push({.choice = 1, .tokens = 1, .text = "b"});
  stream.Push({.choice = 0, .tokens = 2, .text = "c", .result = Result{.rounds = 3}});
  const AnswerPart first = *stream.Next(milliseconds(1));
  EXPECT_EQ(first.choice, 0);
  EXPECT_EQ(first.tokens, 3);
  EXPECT_EQ(first.text, "ac");
  EXPECT_EQ(first.drafted, "");
  EXPECT_EQ(first.result->rounds, 3);
  EXPECT_EQ(stream.Next(milliseconds(1))->text, "b");
  EXPECT_FALSE(stream.Next(milliseconds(1)));
}

TEST(AnswerStream, WakesWhoeverWaits) {
  AnswerStream stream;
  std::thread other([&] { stream.Push({.text = "a"}); });
  EXPECT_EQ(stream.Next(milliseconds(60'000))->text, "a");
  other.join();
}

TEST(Logprobs, AreThoseOfTheLogits) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F, 3.0F};
  const double total = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  const TokenLogprob result = LogprobOf({TokenId{2}, logits}, 3);
  EXPECT_EQ(result.token, TokenId{2});
  EXPECT_NEAR(result.logprob, 2.0 - total, 1e-6);
  ASSERT_EQ(result.top.size(), 3U);
  EXPECT_EQ(result.top[0].first, TokenId{1});
  EXPECT_EQ(result.top[1].first, TokenId{3});
  EXPECT_EQ(result.top[2].first, TokenId{2});
  EXPECT_NEAR(result.top[0].second, 3.0 - total, 1e-6);
  EXPECT_TRUE(LogprobOf({TokenId{2}, logits}, 0).top.empty());
  EXPECT_EQ(LogprobOf({TokenId{2}, logits}, 9).top.size(), 4U);
}

}  // namespace
}  // namespace vericache
