#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
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
  for (const char* name :
       {"none", "streamingllm", "snapkv", "expectedattention", "kvzip", "h2o", "split", "q8", "q4r",
        "kivi2", "turboquant3", "rotatekv2", "kvquant4", "kvquant3", "kvquant2"}) {
    EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  }
  EXPECT_EQ(std::ranges::count(names, "f16"), 0);
  for (const std::string& name : names) {
    EXPECT_EQ(MakeCompressor(name).name, name);
  }
}

TEST(MakeCompressor, TakesOptions) {
  const Compressor both = MakeCompressor("snapkv:window=7,kernel=3+kivi4:residual=64");
  EXPECT_EQ(both.needs().query_window, 7);
  EXPECT_EQ(both.residual, 64);
  EXPECT_EQ(CompressorOptions("snapkv"), "window=32,kernel=5,refresh=0,refresh-queries=16");
  EXPECT_EQ(CompressorOptions("streamingllm"), "sinks=4");
  EXPECT_FALSE(both.refreshes());
  const Compressor refreshed = MakeCompressor("snapkv:refresh=0.5,refresh-queries=8");
  EXPECT_TRUE(refreshed.refreshes());
  EXPECT_EQ(refreshed.needs().verified_window, 8);
  EXPECT_EQ(refreshed.needs().query_window, 32);
  EXPECT_EQ(CompressorOptions("kivi2"), "residual=128");
  EXPECT_EQ(CompressorOptions("none"), "");
}

TEST(MakeCompressor, TakesAFormatForKeysAndOneForValues) {
  const Compressor both = MakeCompressor("k=q8,v=q4");
  EXPECT_EQ(both.format, (KvFormat{NumberFormat::kQ8, NumberFormat::kQ4}));
  EXPECT_EQ(both.residual, 0);
  EXPECT_EQ(both.scorer, nullptr);
  EXPECT_EQ(MakeCompressor("k=q4r,v=turboquant2").format,
            (KvFormat{NumberFormat::kQ4R, NumberFormat::kTurbo2}));
  EXPECT_EQ(MakeCompressor("k=kivi4").format, (KvFormat{NumberFormat::kKivi4, NumberFormat::kF16}));
  EXPECT_EQ(MakeCompressor("k=kivi4").residual, 128);
  const Compressor dropped = MakeCompressor("snapkv:window=8+v=kivi2,k=q8,residual=32");
  EXPECT_EQ(dropped.format, (KvFormat{NumberFormat::kQ8, NumberFormat::kKivi2}));
  EXPECT_EQ(dropped.residual, 32);
  EXPECT_EQ(dropped.needs().query_window, 8);
  for (const char* wrong : {"k=q5", "q=q8", "k=q8+v=q4", "k=q8+kivi4", "k=", "k=q8,k=q8"}) {
    EXPECT_THROW(MakeCompressor(wrong), UserError) << wrong;
  }
}

TEST(MakeCompressor, TakesKvQuantsOptionsWhereverItIs) {
  const Compressor plain = MakeCompressor("kvquant3");
  EXPECT_EQ(plain.format, (KvFormat{NumberFormat::kKvQuant3, NumberFormat::kKvQuant3, 0.01F}));
  EXPECT_EQ(plain.residual, 0);
  EXPECT_EQ(plain.calibration, "");
  EXPECT_TRUE(plain.IsKvQuant());
  EXPECT_FALSE(MakeCompressor("snapkv+kivi4").IsKvQuant());
  const Compressor both = MakeCompressor("snapkv+kvquant2:levels=a/b.json,outliers=0.02");
  EXPECT_EQ(both.calibration, "a/b.json");
  EXPECT_EQ(both.format->outliers, 0.02F);
  const Compressor pair = MakeCompressor("k=kvquant4,v=q4,outliers=0");
  EXPECT_EQ(pair.format, (KvFormat{NumberFormat::kKvQuant4, NumberFormat::kQ4, 0.0F}));
  const Compressor split = MakeCompressor("split:high=q8,low=kvquant2,outliers=0.05");
  EXPECT_TRUE(split.IsKvQuant());
  EXPECT_EQ(split.split->low.outliers, 0.05F);
}

TEST(MakeCompressor, SplitsOverTwoFormats) {
  const Compressor split =
      MakeCompressor("snapkv+split:high=q8,high_values=q4,low=kivi2,share=0.1");
  EXPECT_EQ(split.format, (KvFormat{NumberFormat::kQ8, NumberFormat::kQ4}));
  ASSERT_TRUE(split.split);
  EXPECT_EQ(split.split->low, kKivi2);
  EXPECT_EQ(split.split->high_share, 0.1);
  EXPECT_EQ(MakeCompressor("snapkv+kivi4").split, std::nullopt);
  for (const char* wrong : {"split:share=0", "split:high=q5", "split+q4", "split:k=q8"}) {
    EXPECT_THROW(MakeCompressor(wrong), UserError) << wrong;
  }
}

// Option by option: what is wrong, and what would be right.
TEST(MakeCompressor, RefusesOptionsThatItDoesNotKnow) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"snapkv:windows=3", "window=32,kernel=5,refresh=0,refresh-queries=16"},
      {"snapkv:window=0", "from 1 to"},
      {"snapkv:window=3x", "'3x'"},
      {"snapkv:window=", "name=value"},
      {"snapkv:window", "name=value"},
      {"snapkv:=3", "name=value"},
      {"snapkv:window=3,window=4", "twice"},
      {"snapkv:kernel=4", "odd"},
      {"snapkv:refresh=1.5", "from 0 to 1"},
      {"streamingllm:refresh=0.5", "no option 'refresh'"},
      {"kivi4:residual=-1", "from 0 to"},
      {"kvquant3:bits=3", "residual=0,levels=,outliers=0.01"},
      {"kvquant3:outliers=0.5", "from 0 to 0.1"},
      {"kivi4:outliers=0.01", "no option 'outliers'"},
  };
  for (const auto& [name, what] : wrong) {
    try {
      MakeCompressor(name);
      FAIL() << "accepted " << name;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  }
}

TEST(MethodOptions, AreReadAsAskedFor) {
  MethodOptions options("m", "b=2.5,c=two");
  constexpr std::array<std::string_view, 2> kWords = {"one", "two"};
  EXPECT_EQ(options.Integer("a", 7, 0, 9), 7);
  EXPECT_EQ(options.Number("b", 1.5, 0.0, 3.0), 2.5);
  EXPECT_EQ(options.Word("c", "one", kWords), "two");
  EXPECT_EQ(options.Defaults(), "a=7,b=1.5,c=one");
  options.CheckAllKnown();
  MethodOptions others("m", "b=nan,c=three");
  EXPECT_THROW(others.Number("b", 1.5, 0.0, 3.0), UserError);
  EXPECT_THROW(others.Word("c", "one", kWords), UserError);
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
                         ::testing::Values("", "+", "h3o", "SnapKV", "snapkv ", "snapkv+", "+kivi4",
                                           "snapkv+streamingllm", "snapkv+snapkv", "kivi4+kivi2",
                                           "none+kivi4", "snapkv+none", "snapkv+kivi4+kivi2",
                                           "snapkv++kivi4", "snapkv,kivi4"));

}  // namespace
}  // namespace vericache
