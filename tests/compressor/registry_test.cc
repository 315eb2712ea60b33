#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "compressor/compressor.h"
#include "compressor/snapkv.h"
#include "compressor/streamingllm.h"

namespace vericache {
namespace {

constexpr KvFormat kKivi4 = {NumberFormat::kKivi4, NumberFormat::kKivi4};
constexpr KvFormat kKivi2 = {NumberFormat::kKivi2, NumberFormat::kKivi2};

TEST(MakeCompressor, NoneKeepsEverythingAsItIs) {
  const Compressor none = MakeCompressor("none");
  EXPECT_EQ(none.name, "none");
  EXPECT_EQ(none.scorer, nullptr);
  EXPECT_EQ(none.format, std::nullopt);
}

TEST(MakeCompressor, AScorerAloneHasNoFormat) {
  const Compressor snapkv = MakeCompressor("snapkv");
  EXPECT_NE(dynamic_cast<const SnapKv*>(snapkv.scorer.get()), nullptr);
  EXPECT_EQ(snapkv.format, std::nullopt);
  EXPECT_NE(dynamic_cast<const StreamingLlm*>(MakeCompressor("streamingllm").scorer.get()),
            nullptr);
}

TEST(MakeCompressor, AFormatAloneKeepsAllPositions) {
  const Compressor kivi4 = MakeCompressor("kivi4");
  EXPECT_EQ(kivi4.scorer, nullptr);
  EXPECT_EQ(kivi4.format, kKivi4);
  EXPECT_EQ(kivi4.residual, 128);
  EXPECT_EQ(MakeCompressor("kivi2").format, kKivi2);
}

TEST(MakeCompressor, CombinesAScorerAndAFormatInEitherOrder) {
  for (const std::string name : {"snapkv+kivi4", "kivi4+snapkv"}) {
    const Compressor both = MakeCompressor(name);
    EXPECT_EQ(both.name, name);
    EXPECT_NE(dynamic_cast<const SnapKv*>(both.scorer.get()), nullptr);
    EXPECT_EQ(both.format, kKivi4);
  }
  EXPECT_EQ(MakeCompressor("streamingllm+kivi2").format, kKivi2);
}

TEST(MakeCompressor, KnowsEveryNameThatItLists) {
  const std::vector<std::string> names = CompressorNames();
  EXPECT_EQ(names, (std::vector<std::string>{"none", "streamingllm", "snapkv", "kivi4", "kivi2"}));
  for (const std::string& name : names) {
    EXPECT_EQ(MakeCompressor(name).name, name);
  }
}

class MakeCompressorRefuses : public ::testing::TestWithParam<std::string> {};

TEST_P(MakeCompressorRefuses, ListingWhatIsKnown) {
  try {
    MakeCompressor(GetParam());
    FAIL() << "accepted '" << GetParam() << "'";
  } catch (const UserError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("'" + GetParam() + "'"), std::string::npos) << what;
    for (const std::string& name : CompressorNames()) {
      EXPECT_NE(what.find(name), std::string::npos) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Names, MakeCompressorRefuses,
                         ::testing::Values("", "+", "h2o", "SnapKV", "snapkv ", "snapkv+", "+kivi4",
                                           "snapkv+streamingllm", "snapkv+snapkv", "kivi4+kivi2",
                                           "none+kivi4", "snapkv+none", "snapkv+kivi4+kivi2",
                                           "snapkv++kivi4", "snapkv,kivi4"));

}  // namespace
}  // namespace vericache
