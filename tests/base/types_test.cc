#include "base/types.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "base/error.h"

namespace vericache {
namespace {

TEST(HumanBytes, UsesTheLargestUnitThatGivesAtLeastOne) {
  EXPECT_EQ(HumanBytes({0}), "0 B");
  EXPECT_EQ(HumanBytes({1023}), "1023 B");
  EXPECT_EQ(HumanBytes({1024}), "1.0 KiB");
  EXPECT_EQ(HumanBytes({1536}), "1.5 KiB");
  EXPECT_EQ(HumanBytes({98356430}), "93.8 MiB");
  EXPECT_EQ(HumanBytes({std::uint64_t{3} << 30U}), "3.0 GiB");
  EXPECT_EQ(HumanBytes({std::uint64_t{5} << 40U}), "5.0 TiB");
  EXPECT_EQ(HumanBytes({~std::uint64_t{0}}), "16777216.0 TiB");
}

TEST(ParseBytes, KnowsDecimalAndBinaryUnits) {
  EXPECT_EQ(ParseBytes("4096"), Bytes{4096});
  EXPECT_EQ(ParseBytes("7B"), Bytes{7});
  EXPECT_EQ(ParseBytes("2KB"), Bytes{2000});
  EXPECT_EQ(ParseBytes("2KiB"), Bytes{2048});
  EXPECT_EQ(ParseBytes("3MB"), Bytes{3000000});
  EXPECT_EQ(ParseBytes("512MiB"), Bytes{std::uint64_t{512} << 20U});
  EXPECT_EQ(ParseBytes("2GB"), Bytes{2000000000});
  EXPECT_EQ(ParseBytes("2GiB"), Bytes{std::uint64_t{2} << 30U});
  EXPECT_EQ(ParseBytes("1.5KiB"), Bytes{1536});
  EXPECT_EQ(ParseBytes("0"), Bytes{0});
}

class ParseBytesRefuses : public ::testing::TestWithParam<std::string> {};

TEST_P(ParseBytesRefuses, WithAMessageThatShowsTheText) {
  try {
    ParseBytes(GetParam());
    FAIL() << "accepted '" << GetParam() << "'";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("'" + GetParam() + "'"), std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Texts, ParseBytesRefuses,
                         ::testing::Values("", "MiB", "-1", "-1KiB", "1 MiB", " 1", "1 ", "1mib",
                                           "1TiB", "one", "1.2.3", "0x10", "+5", "inf", "nan",
                                           "1e30", "1e999", "1GiBB", "99999999999GiB"));

RC_GTEST_PROP(ParseBytes, ReadsBackWhatIsWritten, ()) {
  const auto count = *rc::gen::inRange<std::uint64_t>(0, std::uint64_t{1} << 40U);
  RC_ASSERT(ParseBytes(std::to_string(count)) == Bytes{count});
  RC_ASSERT(ParseBytes(std::to_string(count % 100000) + "MiB") == (Bytes{(count % 100000) << 20U}));
}

TEST(Bytes, AddSubtractAndMultiply) {
  Bytes bytes{10};
  bytes += Bytes{5};
  bytes -= Bytes{3};
  EXPECT_EQ(bytes, Bytes{12});
  EXPECT_EQ(Bytes{7} * 6, Bytes{42});
  EXPECT_EQ(Bytes{7} + Bytes{1} - Bytes{8}, Bytes{0});
  EXPECT_LT(Bytes{7}, Bytes{8});
}

TEST(Raw, GivesTheIntegerOfAStrongType) {
  EXPECT_EQ(Raw(TokenId{-3}), -3);
  EXPECT_EQ(Raw(Position{7}), 7);
}

}  // namespace
}  // namespace vericache
