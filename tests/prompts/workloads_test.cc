#include "prompts/workloads.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"

namespace vericache {
namespace {

// A token for each four bytes.
int CountTokens(const std::string& text) { return static_cast<int>(text.size() / 4); }

std::string TextOf(const PromptText& prompt) {
  return prompt.messages.empty() ? prompt.text : prompt.messages.at(0).content;
}

RC_GTEST_PROP(Workloads, FillTheContextAndAreTheSameAgain, ()) {
  const std::span<const WorkloadKind> workloads = Workloads();
  const WorkloadKind& workload = workloads[*rc::gen::inRange<std::size_t>(0, workloads.size())];
  const int tokens = *rc::gen::element(1000, 1500, 2000, 3000);
  const auto seed = *rc::gen::inRange<std::uint32_t>(0, 1000);
  const std::string text = TextOf(MakeWorkload(workload.name, tokens, seed, CountTokens));
  RC_ASSERT(CountTokens(text) <= tokens);
  RC_ASSERT(CountTokens(text) >= tokens - 800);  // the longest function or paragraph
  RC_ASSERT(text == TextOf(MakeWorkload(workload.name, tokens, seed, CountTokens)));
}

TEST(Workloads, AreAllDifferent) {
  std::set<std::string> texts;
  std::set<std::string_view> names;
  for (const WorkloadKind& workload : Workloads()) {
    names.insert(workload.name);
    for (const std::uint32_t seed : {1U, 2U}) {
      texts.insert(TextOf(MakeWorkload(workload.name, 1000, seed, CountTokens)));
    }
  }
  EXPECT_EQ(names.size(), Workloads().size());
  EXPECT_EQ(texts.size(), 2 * names.size());
}

// What the model is asked about is in the prompt.
TEST(Workloads, AskForWhatIsThere) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const std::string call = TextOf(MakeWorkload("call", 1200, seed, CountTokens));
    const std::size_t question = call.find("\nCall these");
    ASSERT_NE(question, std::string::npos);
    std::size_t at = call.find("\n- ", question);
    int calls = 0;
    for (; at != std::string::npos; at = call.find("\n- ", at + 1), ++calls) {
      const std::size_t number = call.find(" number ", at);
      const std::string name =
          call.substr(at + 3, number - at - 3) + "_" + call.substr(number + 8, 3);
      EXPECT_LT(call.find("\"" + name + "\""), question) << name;
    }
    EXPECT_EQ(calls, 6);
    const std::string edit = TextOf(MakeWorkload("code-edit", 1600, seed, CountTokens));
    const std::size_t begin = edit.find("begins with `");
    ASSERT_NE(begin, std::string::npos);
    const std::string line = edit.substr(begin + 13, edit.find('`', begin + 13) - begin - 13);
    EXPECT_TRUE(line.find('(') != std::string::npos && line.ends_with("{")) << line;
    EXPECT_LT(edit.find(line), begin);
    const std::string quote = TextOf(MakeWorkload("quote", 1200, seed, CountTokens));
    const std::size_t numbers = quote.find("in brackets: ");
    ASSERT_NE(numbers, std::string::npos);
    const std::string first = quote.substr(numbers + 13, quote.find(',', numbers) - numbers - 13);
    EXPECT_LT(quote.find("[" + first + "] "), numbers);
  }
}

TEST(Workloads, RefuseWhatTheyCannotBe) {
  EXPECT_THROW(MakeWorkload("poem", 1000, 1, CountTokens), UserError);
  EXPECT_THROW(MakeWorkload("extract", 20, 1, CountTokens), UserError);
  EXPECT_THROW(MakeWorkload("quote", 1'000'000, 1, CountTokens), UserError);
}

}  // namespace
}  // namespace vericache
