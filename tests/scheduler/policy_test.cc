#include "scheduler/policy.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace vericache {
namespace {

constexpr Policy kPolicies[] = {Policy::kFull, Policy::kLossy, Policy::kVeriCache,
                                Policy::kLockstep};

TEST(PolicyName, IsReadBack) {
  for (const Policy policy : kPolicies) {
    EXPECT_EQ(ParsePolicy(Name(policy)), policy);
  }
  EXPECT_EQ(Name(Policy::kFull), "full");
  EXPECT_EQ(Name(Policy::kLossy), "lossy");
  EXPECT_EQ(Name(Policy::kVeriCache), "vericache");
  EXPECT_EQ(Name(Policy::kLockstep), "lockstep");
}

TEST(PolicyName, UnknownIsNotAPolicy) {
  EXPECT_EQ(ParsePolicy(""), std::nullopt);
  EXPECT_EQ(ParsePolicy("Full"), std::nullopt);
  EXPECT_EQ(ParsePolicy("vericache "), std::nullopt);
  EXPECT_EQ(ParsePolicy("full, lossy"), std::nullopt);
}

TEST(PolicyName, AllAreListed) {
  EXPECT_EQ(PolicyNames(), "full, lossy, vericache, lockstep, auto");
}

TEST(Policy, TwoVerify) {
  EXPECT_FALSE(Verifies(Policy::kFull));
  EXPECT_FALSE(Verifies(Policy::kLossy));
  EXPECT_TRUE(Verifies(Policy::kVeriCache));
  EXPECT_TRUE(Verifies(Policy::kLockstep));
}

}  // namespace
}  // namespace vericache
