#include "perfmodel/acceptance_model.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "unit_support/temporary_folder.h"

namespace vericache {
namespace {

RC_GTEST_PROP(AcceptanceModel, ShareIsReadBack, ()) {
  const double share = *rc::gen::inRange(0, 999) / 1000.0;
  const int x = *rc::gen::inRange(1, 100);
  RC_ASSERT(std::abs(AcceptanceModel::FromShare(share, x).Accepted(x) - share * x) < 1e-6 * x);
}

RC_GTEST_PROP(AcceptanceModel, LongerDraftsAcceptMoreButALowerShare, ()) {
  const auto model = AcceptanceModel::FromChance(*rc::gen::inRange(1, 999) / 1000.0);
  const int x = *rc::gen::inRange(1, 100);
  RC_ASSERT(model.Accepted(x + 1) >= model.Accepted(x));
  RC_ASSERT(model.Accepted(x + 1) / (x + 1) <= model.Accepted(x) / x);
}

class AcceptanceFile : public ::testing::Test {
 protected:
  AcceptanceModel Read(const std::string& text) {
    std::ofstream(path_) << text;
    return AcceptanceModel::Parse(path_, 25);
  }

 private:
  testing::TemporaryFolder folder_;
  std::string path_ = (folder_.path() / "acceptance.json").string();
};

TEST_F(AcceptanceFile, MeansAndInterpolates) {
  const AcceptanceModel model = Read(
      R"({"results": [{"x": 8, "acceptance_length": 6}, {"x": 8, "acceptance_length": 8},
                      {"x": 16, "acceptance_length": 11}]})");
  EXPECT_EQ(model.Accepted(0), 0.0);
  EXPECT_DOUBLE_EQ(model.Accepted(4), 3.5);
  EXPECT_DOUBLE_EQ(model.Accepted(8), 7.0);
  EXPECT_DOUBLE_EQ(model.Accepted(12), 9.0);
  EXPECT_DOUBLE_EQ(model.Accepted(40), 11.0);
}

TEST_F(AcceptanceFile, RefusesWhatHasNoResults) {
  for (const char* text : {"", "[]", "{}", R"({"results": []})", R"({"results": [{"x": 8}]})"}) {
    EXPECT_THROW(Read(text), UserError) << text;
  }
}

TEST(AcceptanceModelParse, RefusesOtherThanSharesAndFiles) {
  for (const char* text : {"1", "-0.1", "nan", "/no/such/file", "0.5x"}) {
    EXPECT_THROW(AcceptanceModel::Parse(text, 25), UserError) << text;
  }
  EXPECT_NEAR(AcceptanceModel::Parse("0.85", 25).Accepted(25), 21.25, 1e-6);
}

}  // namespace
}  // namespace vericache
