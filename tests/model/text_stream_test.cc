#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer.h"

namespace vericache {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string Utf8(std::uint32_t point) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  const auto next = [&](std::uint32_t value) { return byte(0x80U | (value & 0x3FU)); };
  if (point < 0x80U) {
    return {byte(point)};
  }
  if (point < 0x800U) {
    return {byte(0xC0U | (point >> 6U)), next(point)};
  }
  if (point < 0x10000U) {
    return {byte(0xE0U | (point >> 12U)), next(point >> 6U), next(point)};
  }
  return {byte(0xF0U | (point >> 18U)), next(point >> 12U), next(point >> 6U), next(point)};
}

// A character of any length, but no surrogate.
std::string AnyCharacter() {
  const auto point = *rc::gen::oneOf(rc::gen::inRange<std::uint32_t>(0, 0x80),
                                     rc::gen::inRange<std::uint32_t>(0x80, 0x800),
                                     rc::gen::inRange<std::uint32_t>(0x800, 0xD800),
                                     rc::gen::inRange<std::uint32_t>(0xE000, 0x10000),
                                     rc::gen::inRange<std::uint32_t>(0x10000, 0x110000));
  return Utf8(point);
}

// True where `text` is valid UTF-8, by the table of RFC 3629.
bool IsUtf8(std::string_view text) {
  std::size_t at = 0;
  const auto in = [&](std::size_t i, unsigned low, unsigned high) {
    return at + i < text.size() && static_cast<unsigned char>(text[at + i]) >= low &&
           static_cast<unsigned char>(text[at + i]) <= high;
  };
  const auto tail = [&](std::size_t i) { return in(i, 0x80, 0xBF); };
  while (at < text.size()) {
    if (in(0, 0x00, 0x7F)) {
      at += 1;
    } else if (in(0, 0xC2, 0xDF) && tail(1)) {
      at += 2;
    } else if ((in(0, 0xE0, 0xE0) && in(1, 0xA0, 0xBF) && tail(2)) ||
               (in(0, 0xE1, 0xEC) && tail(1) && tail(2)) ||
               (in(0, 0xED, 0xED) && in(1, 0x80, 0x9F) && tail(2)) ||
               (in(0, 0xEE, 0xEF) && tail(1) && tail(2))) {
      at += 3;
    } else if ((in(0, 0xF0, 0xF0) && in(1, 0x90, 0xBF) && tail(2) && tail(3)) ||
               (in(0, 0xF1, 0xF3) && tail(1) && tail(2) && tail(3)) ||
               (in(0, 0xF4, 0xF4) && in(1, 0x80, 0x8F) && tail(2) && tail(3))) {
      at += 4;
    } else {
      return false;
    }
  }
  return true;
}

std::string Whole(std::string_view bytes) {
  TextStream stream;
  std::string text = stream.Add(bytes);
  return text + stream.Finish();
}

// Adds `bytes` in random pieces, empty ones too; everything handed on must be whole characters.
std::string InPieces(const std::string& bytes) {
  TextStream stream;
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto size = static_cast<std::size_t>(*rc::gen::inRange(1, 5));
    const std::string added = stream.Add(std::string_view(bytes).substr(at, size));
    RC_ASSERT(IsUtf8(added));
    RC_ASSERT(stream.Add("").empty());
    text += added;
    at += size;
  }
  const std::string rest = stream.Finish();
  RC_ASSERT(IsUtf8(rest));
  RC_ASSERT(stream.Finish().empty());
  return text + rest;
}

RC_GTEST_PROP(TextStream, GivesTheTextWhereverItIsSplit, ()) {
  std::string text;
  for (int i = *rc::gen::inRange(0, 40); i > 0; --i) {
    text += AnyCharacter();
  }
  RC_ASSERT(InPieces(text) == text);
}

RC_GTEST_PROP(TextStream, GivesValidTextForAnyBytesWhereverTheyAreSplit, ()) {
  std::string bytes;
  for (int i = *rc::gen::inRange(0, 40); i > 0; --i) {
    // Bytes that begin or continue long characters are the interesting ones.
    bytes += *rc::gen::oneOf(
        rc::gen::map(rc::gen::inRange(0, 256), [](int byte) { return static_cast<char>(byte); }),
        rc::gen::map(rc::gen::inRange(0x80, 0xC0),
                     [](int byte) { return static_cast<char>(byte); }),
        rc::gen::map(rc::gen::inRange(0xE0, 0xF8),
                     [](int byte) { return static_cast<char>(byte); }));
  }
  RC_ASSERT(InPieces(bytes) == Whole(bytes));
}

RC_GTEST_PROP(TextStream, LosesNoCharacterBetweenInvalidBytes, ()) {
  std::string bytes;
  std::vector<std::string> characters;
  for (int i = *rc::gen::inRange(0, 20); i > 0; --i) {
    bytes += *rc::gen::elementOf(
        std::vector<std::string>{"\xFF", "\xC3", "\x80", "\xE2\x82", "\xF0\x9F\x98", "\xC0"});
    characters.push_back(AnyCharacter());
    bytes += characters.back();
  }
  std::string text = InPieces(bytes);
  std::size_t at = 0;
  for (const std::string& character : characters) {
    RC_ASSERT(text.compare(at, kReplacement.size(), kReplacement) == 0);
    at = text.find(character, at + (character == kReplacement ? kReplacement.size() : 0));
    RC_ASSERT(at != std::string::npos);
    at += character.size();
  }
  RC_ASSERT(at == text.size());
}

TEST(TextStream, HandsOnWhatIsCompleteAtOnce) {
  TextStream stream;
  EXPECT_EQ(stream.Add("ab"), "ab");
  EXPECT_EQ(stream.Add("c\xE2\x82"), "c");
  EXPECT_EQ(stream.Add(""), "");
  EXPECT_EQ(stream.Add("\xAC"), "\xE2\x82\xAC");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, ReplacesWhatNeverBecomesACharacter) {
  const std::string replacement(kReplacement);
  EXPECT_EQ(Whole("\xFFz"), replacement + "z");
  EXPECT_EQ(Whole("\xE2\x82z"), replacement + "z");
  EXPECT_EQ(Whole("\xE2\x82"), replacement);
  EXPECT_EQ(Whole("\x80"), replacement);
  EXPECT_EQ(Whole("\xF0\x9F"), replacement);
}

class NotACharacter : public ::testing::TestWithParam<std::string> {};

TEST_P(NotACharacter, IsReplaced) {
  const std::string text = Whole(GetParam() + "z");
  EXPECT_TRUE(IsUtf8(text));
  EXPECT_TRUE(text.starts_with(kReplacement));
  EXPECT_TRUE(text.ends_with(std::string(kReplacement) + "z"));
}

INSTANTIATE_TEST_SUITE_P(Overlong, NotACharacter,
                         ::testing::Values("\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF",
                                           "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF"));
INSTANTIATE_TEST_SUITE_P(Surrogate, NotACharacter,
                         ::testing::Values("\xED\xA0\x80", "\xED\xBF\xBF"));
INSTANTIATE_TEST_SUITE_P(TooLarge, NotACharacter,
                         ::testing::Values("\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xFF"));

}  // namespace
}  // namespace vericache
