#include "compressor/profile.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "unit_support/random_data.h"
#include "unit_support/temporary_folder.h"

namespace vericache {
namespace {

using testing::RandomData;

std::string Written(const testing::TemporaryFolder& folder, const std::string& text) {
  const std::string path = (folder.path() / "profile.json").string();
  std::ofstream(path) << text;
  return path;
}

RC_GTEST_PROP(Profile, IsReadAsItWasWritten, (std::uint32_t seed)) {
  RandomData random(seed);
  const auto any = [&random] {
    return kNumberFormats[Size(random.Below(static_cast<int>(kNumberFormats.size())))].format;
  };
  Profile profile{.model = "m \"1\"",
                  .scorer = random.Below(2) == 0 ? "" : "snapkv:window=8",
                  .residual = random.Below(200),
                  .layers = {}};
  for (int i = 1 + random.Below(4); i > 0; --i) {
    LayerRecipe& layer = profile.layers.emplace_back();
    if (random.Below(2) == 0) {
      layer.keep = (1 + random.Below(100)) / 100.0;
    }
    if (random.Below(3) > 0) {
      layer.format = KvFormat{any(), any()};
      if (random.Below(2) == 0) {
        layer.split = Split{.low = {any(), any()}, .high_share = 0.25};
      }
    }
  }
  const testing::TemporaryFolder folder;
  const std::string path = Written(folder, ToText(profile));
  const Profile read = ReadProfile(path);
  RC_ASSERT(ToText(read) == ToText(profile));
  const Compressor compressor = MakeCompressor("profile:" + path);
  RC_ASSERT((compressor.scorer != nullptr) == !profile.scorer.empty());
  RC_ASSERT(compressor.residual == profile.residual);
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    const LayerRecipe recipe = compressor.recipe(LayerId{static_cast<int>(i)});
    RC_ASSERT(recipe.keep == profile.layers[i].keep);
    RC_ASSERT(recipe.format == profile.layers[i].format);
    RC_ASSERT(recipe.split.has_value() == profile.layers[i].split.has_value());
  }
}

TEST(Profile, RefusesWhatIsNone) {
  const testing::TemporaryFolder folder;
  for (const char* text :
       {"", "{}", "[1]", R"({"layers": []})", R"({"layers": [{"keys": "q5", "values": "q4"}]})",
        R"({"layers": [{"keys": "q4"}]})", R"({"layers": [{"keep": 0}]})",
        R"({"layers": [{"keep": "much"}]})", R"({"layers": [{}], "residual": -1})",
        R"({"layers": [{"low_keys": "q4", "low_values": "q4", "high_share": 0.5}]})"}) {
    const std::string path = Written(folder, text);
    try {
      ReadProfile(path);
      FAIL() << "accepted " << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(ReadProfile((folder.path() / "none.json").string()), UserError);
}

TEST(Profile, ThoseThatComeWithTheProjectAreRead) {
  int profiles = 0;
  for (const auto& file : std::filesystem::directory_iterator(VERICACHE_SOURCE_DIR "/profiles")) {
    EXPECT_GT(ReadProfile(file.path()).layers.size(), 1U) << file.path();
    EXPECT_NO_THROW(MakeCompressor("profile:" + file.path().string())) << file.path();
    ++profiles;
  }
  EXPECT_GT(profiles, 0);
}

}  // namespace
}  // namespace vericache
