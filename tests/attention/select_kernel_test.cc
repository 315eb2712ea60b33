#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "attention/kernel.h"
#include "base/error.h"

namespace vericache {
namespace {

class SelectKernelTest : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("VERICACHE_ISA"); }
};

TEST_F(SelectKernelTest, TakesTheWidestKernelByDefault) {
  unsetenv("VERICACHE_ISA");
  EXPECT_EQ(SelectKernel().name, AvailableKernels().back().name);
  setenv("VERICACHE_ISA", "", 1);
  EXPECT_EQ(SelectKernel().name, AvailableKernels().back().name);
}

TEST_F(SelectKernelTest, DraftsTakeTheWidestButForAmx) {
  unsetenv("VERICACHE_ISA");
  EXPECT_NE(SelectDraftKernel().name, "AMX");
  if (SelectKernel().name != "AMX") {
    EXPECT_EQ(SelectDraftKernel().name, SelectKernel().name);
  }
}

TEST_F(SelectKernelTest, TakesAnyKernelByNameWhateverItsCase) {
  EXPECT_EQ(AvailableKernels().front().name, "scalar");
  for (const AttentionKernel& kernel : AvailableKernels()) {
    setenv("VERICACHE_ISA", kernel.name.c_str(), 1);
    EXPECT_EQ(SelectKernel().name, kernel.name);
  }
  setenv("VERICACHE_ISA", "SCALAR", 1);
  EXPECT_EQ(SelectKernel().name, "scalar");
  EXPECT_EQ(SelectDraftKernel().name, "scalar");
}

TEST_F(SelectKernelTest, RefusesAnUnknownKernelListingTheKnown) {
  setenv("VERICACHE_ISA", "avx9000", 1);
  try {
    SelectKernel();
    FAIL() << "accepted avx9000";
  } catch (const UserError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("avx9000"), std::string::npos) << what;
    EXPECT_NE(what.find("scalar"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace vericache
