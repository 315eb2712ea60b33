// KVQuant's arithmetic beside another program's, tests/reference/kvquant.py.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "evaluation/kvquant_levels.h"
#include "kvcache/kvquant.h"
#include "kvcache/quantize.h"
#include "nlohmann/json.hpp"
#include "unit_support/draws.h"
#include "unit_support/random_data.h"
#include "unit_support/rope.h"

namespace vericache {
namespace {

constexpr int kDim = testing::DrawnNumbers::kDim;

struct Inputs : testing::DrawnNumbers {
  Inputs() {
    for (float& sample : samples) {
      sample /= 4.0F;
    }
    std::erase_if(samples, [](float sample) { return std::abs(sample) > 1.0F; });
    for (int slot = 0; slot < kGroupSlots; ++slot) {
      positions.push_back(100 + 7 * slot);
    }
  }

  std::vector<int> positions;
};

nlohmann::json Fixture() {
  std::ifstream file(VERICACHE_SOURCE_DIR "/tests/reference/kvquant_tiny.json");
  return nlohmann::json::parse(file);
}

KvQuantLevels Levels(const nlohmann::json& numbers) {
  KvQuantLevels levels{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    levels[i] = static_cast<std::uint8_t>(numbers[i].get<int>() + 128);
  }
  return levels;
}

// `count` codes that lie as a format's do, as hexadecimal digits.
std::string Codes(NumberFormat format, const std::byte* codes, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::byte* group = codes + CodeBytes(format, i / kGroupSlots * kGroupSlots);
    text += "0123456789abcdef"[GetCode(Traits(format).bits, group, i % kGroupSlots)];
  }
  return text;
}

std::vector<int> Outliers(const std::byte* from, int places) {
  std::vector<int> indices;
  for (int i = 0; i < places; ++i) {
    indices.push_back(static_cast<int>(from[2 * i]) + 256 * static_cast<int>(from[2 * i + 1]));
  }
  return indices;
}

void ExpectNear(const std::vector<float>& actual, const nlohmann::json& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double number = expected[i].get<double>();
    EXPECT_NEAR(static_cast<double>(actual[i]), number, 1e-4 + 2e-5 * std::abs(number)) << i;
  }
}

TEST(KvQuantParity, LevelsOfANormalDistribution) {
  const nlohmann::json fixture = Fixture();
  for (std::size_t i = 0; i < kNormalLevels.size(); ++i) {
    EXPECT_EQ(kNormalLevels[i], Levels(fixture["normal_levels"][i]));
  }
}

// The script's k-means is over numbers, ours over a histogram: a level may be rounded otherwise.
TEST(KvQuantParity, FittedLevels) {
  LevelSearch search;
  for (const float number : Inputs().samples) {
    search.Add(number);
  }
  const KvQuantLevelSet levels = search.Levels();
  const nlohmann::json fixture = Fixture();
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const KvQuantLevels expected = Levels(fixture["fitted_levels"][i]);
    for (std::size_t code = 0; code < levels[i].size(); ++code) {
      EXPECT_NEAR(levels[i][code], expected[code], 1) << i + 2 << " bits, code " << code;
    }
  }
}

TEST(KvQuantParity, CodesOutliersAndNumbers) {
  const Inputs inputs;
  const nlohmann::json fixture = Fixture();
  for (const NumberFormat format :
       {NumberFormat::kKvQuant2, NumberFormat::kKvQuant3, NumberFormat::kKvQuant4}) {
    SCOPED_TRACE(Name(format));
    const nlohmann::json& expected = fixture[std::to_string(Traits(format).bits)];
    const KvFormat both{.keys = format, .values = format, .outliers = 0.1F};
    const auto kvquant = std::make_shared<KvQuant>();
    kvquant->rope = testing::MakeRopeTable(kDim, /*neox=*/true, 1000);
    SetKeyRanges(*kvquant, 1, kDim, both.outliers, inputs.keys, inputs.positions);
    ExpectNear(kvquant->key_centers, expected["keys"]["centers"]);
    ExpectNear(kvquant->key_halves, expected["keys"]["halves"]);

    const PageLayout layout(both, {.layers = 1, .kv_heads = 1, .head_dim = kDim}, kvquant);
    std::vector<std::byte> page(layout.page_bytes());
    WriteGroup(layout, page.data(), 0, 0, inputs.keys, inputs.values, inputs.positions);
    const int places = OutlierPlaces(both.outliers, kDim);
    const std::byte* keys = page.data() + layout.KeyOffset(0, 0);
    const std::byte* values = page.data() + layout.ValueOffset(0);
    EXPECT_EQ(Codes(format, keys, kGroupSlots * kDim), expected["keys"]["codes"]);
    EXPECT_EQ(Codes(format, values, kGroupSlots * kDim), expected["values"]["codes"]);
    EXPECT_EQ(Outliers(keys + KvQuantKeyPlaces(both, kDim).outliers, places),
              expected["keys"]["outliers"].get<std::vector<int>>());
    EXPECT_EQ(Outliers(values + KvQuantValuePlaces(both, kDim).outliers[0], places),
              expected["values"]["outliers"].get<std::vector<int>>());
    if (!expected["keys"].contains("read")) {
      continue;
    }
    std::vector<float> read_keys(kGroupSlots * kDim);
    std::vector<float> read_values(read_keys.size());
    for (int slot = 0; slot < kGroupSlots; ++slot) {
      const std::size_t at = Size(slot * kDim);
      ReadKey(layout, page.data(), 0, slot, std::span(read_keys).subspan(at, kDim));
      ReadValue(layout, page.data(), 0, slot, std::span(read_values).subspan(at, kDim));
    }
    ExpectNear(read_keys, expected["keys"]["read"]);
    ExpectNear(read_values, expected["values"]["read"]);
  }
}

}  // namespace
}  // namespace vericache
