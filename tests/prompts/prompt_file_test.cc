#include "prompts/prompt_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "unit_support/temporary_file.h"

namespace vericache {
namespace {

using testing::TemporaryFile;

std::vector<PromptText> Read(std::string_view text) {
  const TemporaryFile file(text);
  return ReadPrompts(file.path().string());
}

// The error's message after the file's name.
std::string LineError(std::string_view text) {
  const TemporaryFile file(text);
  try {
    ReadPrompts(file.path().string());
  } catch (const UserError& error) {
    const std::string what = error.what();
    const std::string path = file.path().string();
    return what.starts_with(path) ? what.substr(path.size()) : "does not name the file: " + what;
  }
  return "no error";
}

TEST(ReadPrompts, TakesTextAndMessages) {
  const auto prompts = Read(R"({"prompt": "Hello", "max_tokens": 7, "id": "first"}
{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}]}
)");
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].text, "Hello");
  EXPECT_EQ(prompts[0].id, "first");
  EXPECT_EQ(prompts[0].max_tokens, 7);
  EXPECT_TRUE(prompts[0].messages.empty());
  EXPECT_EQ(prompts[1].max_tokens, std::nullopt);
  ASSERT_EQ(prompts[1].messages.size(), 2U);
  EXPECT_EQ(prompts[1].messages[0].role, "system");
  EXPECT_EQ(prompts[1].messages[1].content, "Hi\n");
}

TEST(ReadPrompts, NumbersPromptsWithoutAnId) {
  const auto prompts = Read(
      "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"id\": 42}\n"
      "{\"prompt\": \"c\"}\n");
  ASSERT_EQ(prompts.size(), 3U);
  EXPECT_EQ(prompts[0].id, "0");
  EXPECT_EQ(prompts[1].id, "42");
  EXPECT_EQ(prompts[2].id, "2");
}

TEST(ReadPrompts, SkipsEmptyLinesAndTakesWindowsLineEnds) {
  const auto prompts = Read("\n  \t\n{\"prompt\": \"a\"}\r\n\r\n{\"prompt\": \"b\"}\r\n\n");
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].text, "a");
  EXPECT_EQ(prompts[1].text, "b");
}

TEST(ReadPrompts, TakesALastLineWithoutItsEnd) {
  EXPECT_EQ(Read("{\"prompt\": \"a\"}").size(), 1U);
}

TEST(ReadPrompts, KeepsUnicodeAsItIs) {
  EXPECT_EQ(Read("{\"prompt\": \"\xC3\xA9\\u20ac\xF0\x9F\x98\x80\"}")[0].text,
            "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(Read("{\"prompt\": \"\"}")[0].text, "");
}

TEST(ReadPrompts, NamesTheLineThatIsMalformed) {
  EXPECT_EQ(LineError("{\"prompt\": \"a\"}\n\n{\"prompt\": \n"), ":3: not valid JSON");
  EXPECT_EQ(LineError("{\"prompt\": \"\xFF\"}"), ":1: not valid JSON");
  EXPECT_EQ(LineError("{\"prompt\": \"a\"} {\"prompt\": \"b\"}"), ":1: not valid JSON");
  EXPECT_EQ(LineError("\r\n[1]\n"), ":2: not a JSON object");
  EXPECT_EQ(LineError("\"text\""), ":1: not a JSON object");
  EXPECT_EQ(LineError("null"), ":1: not a JSON object");
}

TEST(ReadPrompts, RefusesUnknownFieldsNamingThem) {
  const std::string what = LineError(R"({"prompt": "a", "max_token": 5})");
  EXPECT_NE(what.find(":1: unknown field \"max_token\""), std::string::npos) << what;
  EXPECT_NE(what.find("max_tokens"), std::string::npos) << what;
}

TEST(ReadPrompts, RefusesFieldsOfTheWrongType) {
  EXPECT_NE(LineError(R"({"prompt": 1})").find("\"prompt\""), std::string::npos);
  EXPECT_NE(LineError(R"({"prompt": "a", "id": 1.5})").find("\"id\""), std::string::npos);
  EXPECT_NE(LineError(R"({"prompt": "a", "id": null})").find("\"id\""), std::string::npos);
  for (const char* number : {"0", "-1", "1.5", "\"5\"", "true", "null", "2147483648",
                             "9223372036854775808", "18446744073709551615", "1e3", "1e400"}) {
    const std::string what =
        LineError(std::string(R"({"prompt": "a", "max_tokens": )") + number + "}");
    EXPECT_TRUE(what.find("\"max_tokens\"") != std::string::npos ||
                what.find("not valid JSON") != std::string::npos)
        << number << what;
  }
}

TEST(ReadPrompts, RefusesMalformedMessages) {
  for (const char* messages :
       {"[]", "{}", "\"hi\"", "[1]", "[{}]", R"([{"role": "user"}])", R"([{"content": "a"}])",
        R"([{"role": 1, "content": "a"}])", R"([{"role": "user", "content": ["a"]}])",
        R"([{"role": "user", "content": "a"}, null])"}) {
    const std::string what = LineError(std::string(R"({"messages": )") + messages + "}");
    EXPECT_NE(what.find("message"), std::string::npos) << messages << what;
    EXPECT_TRUE(what.starts_with(":1: ")) << messages << what;
  }
}

TEST(ReadPrompts, NeedsOneOfPromptAndMessages) {
  const std::string one = ":1: one of \"prompt\" and \"messages\" is needed";
  EXPECT_EQ(LineError("{}"), one);
  EXPECT_EQ(LineError(R"({"id": "a"})"), one);
  EXPECT_EQ(LineError(R"({"prompt": "a", "messages": [{"role": "user", "content": "a"}]})"), one);
}

TEST(ReadPrompts, RefusesAFileWithoutPrompts) {
  EXPECT_EQ(LineError(""), ": no prompts in it");
  EXPECT_EQ(LineError("\n\r\n \n"), ": no prompts in it");
}

TEST(ReadText, GivesTheFilesBytes) {
  const std::string bytes("a\r\n\0\xFF\n", 6);
  const TemporaryFile file(bytes);
  EXPECT_EQ(ReadText(file.path().string()), bytes);
}

TEST(ReadText, RefusesWhatCannotBeRead) {
  try {
    ReadText("no-such-folder/no-such-file");
    FAIL() << "read a missing file";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "no-such-folder/no-such-file: no such file");
  }
  EXPECT_THROW(ReadText(::testing::TempDir()), UserError);
}

}  // namespace
}  // namespace vericache
