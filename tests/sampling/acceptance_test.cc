#include "sampling/acceptance.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

namespace vericache {
namespace {

std::vector<TokenId> Tokens(const std::vector<int>& numbers) {
  std::vector<TokenId> tokens;
  for (const int number : numbers) {
    tokens.push_back(TokenId{number});
  }
  return tokens;
}

TEST(AcceptanceLength, CountsUpToTheFirstDifference) {
  EXPECT_EQ(AcceptanceLength(Tokens({1, 2, 3}), Tokens({1, 2, 3, 4})), 3U);
  EXPECT_EQ(AcceptanceLength(Tokens({1, 9, 3}), Tokens({1, 2, 3, 4})), 1U);
  EXPECT_EQ(AcceptanceLength(Tokens({9, 2, 3}), Tokens({1, 2, 3, 4})), 0U);
  EXPECT_EQ(AcceptanceLength(Tokens({1, 2, 9}), Tokens({1, 2, 3, 4})), 2U);
}

TEST(AcceptanceLength, IsZeroForAnEmptyDraft) {
  EXPECT_EQ(AcceptanceLength({}, Tokens({1})), 0U);
  EXPECT_EQ(AcceptanceLength({}, {}), 0U);
}

RC_GTEST_PROP(AcceptanceLength, IsTheLongestEqualPrefix, ()) {
  const auto numbers = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 2));
  const auto copied =
      static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(numbers.size()) + 1));
  const std::vector<TokenId> drafted = Tokens(numbers);
  std::vector<TokenId> verified;
  for (std::size_t i = 0; i <= drafted.size(); ++i) {
    verified.push_back(TokenId{*rc::gen::inRange(0, 2)});
  }
  for (std::size_t i = 0; i < copied; ++i) {
    verified[i] = drafted[i];
  }
  const std::size_t accepted = AcceptanceLength(drafted, verified);
  RC_ASSERT(accepted >= copied);
  RC_ASSERT(accepted <= drafted.size());
  for (std::size_t i = 0; i < accepted; ++i) {
    RC_ASSERT(drafted[i] == verified[i]);
  }
  if (accepted < drafted.size()) {
    RC_ASSERT(drafted[accepted] != verified[accepted]);
  }
}

}  // namespace
}  // namespace vericache
