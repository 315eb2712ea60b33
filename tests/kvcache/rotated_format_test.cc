// The rotation, and the formats that hold rotated rows, against their definitions in float64.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kvcache/format.h"
#include "kvcache/quantize.h"
#include "kvcache/rotation.h"
#include "unit_support/attention_oracle.h"
#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;
using testing::RotatedBack;

double Norm(std::span<const float> row) {
  double square = 0.0;
  for (const float x : row) {
    square += static_cast<double>(x) * static_cast<double>(x);
  }
  return std::sqrt(square);
}

RC_GTEST_PROP(Rotation, KeepsLengthsAndIsUndoneByItsInverse, (std::uint32_t seed)) {
  RandomData random(seed);
  const std::size_t dim = Size(16 * (1 + random.Below(16)));
  const std::vector<float> row = random.WithOutliers(dim, static_cast<int>(dim), 7);
  std::vector<float> turned = row;
  Rotate(turned);
  const double bound = 1e-5 * Norm(row);
  RC_ASSERT(std::abs(Norm(turned) - Norm(row)) <= bound);
  const std::vector<double> by_matrix = RotatedBack(turned);
  RotateBack(turned);
  for (std::size_t c = 0; c < dim; ++c) {
    RC_ASSERT(std::abs(static_cast<double>(turned[c]) - static_cast<double>(row[c])) <= bound);
    RC_ASSERT(std::abs(by_matrix[c] - static_cast<double>(row[c])) <= bound);
  }
}

TEST(Rotation, SpreadsAnOutlierOverAllChannels) {
  std::vector<float> row(64);
  row[17] = 80.0F;
  Rotate(row);
  for (const float x : row) {
    EXPECT_FLOAT_EQ(std::abs(x), 10.0F);
  }
}

// A rotated format holds what the same numbers, rotated before, are in the one that is not.
RC_GTEST_PROP(RotatedFormat, HoldsRotatedRows, (std::uint32_t seed)) {
  RandomData random(seed);
  constexpr std::pair<NumberFormat, NumberFormat> kPairs[] = {
      {NumberFormat::kQ8R, NumberFormat::kQ8},
      {NumberFormat::kQ4R, NumberFormat::kQ4},
      {NumberFormat::kKivi4R, NumberFormat::kKivi4},
      {NumberFormat::kKivi2R, NumberFormat::kKivi2}};
  const auto [rotated, plain] = kPairs[random.Below(4)];
  const int dim = 32 * (1 + random.Below(4));
  const CacheGeometry geometry{.layers = 1, .kv_heads = 1, .head_dim = dim};
  const PageLayout layout({rotated, rotated}, geometry);
  const PageLayout other({plain, plain}, geometry);
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<std::byte> expected(other.page_bytes());
  std::vector<float> keys = random.WithOutliers(Size(kGroupSlots * dim), dim, 7);
  std::vector<float> values = random.Floats(Size(kGroupSlots * dim));
  WriteGroup(layout, page.data(), 0, 32, keys, values);
  for (std::size_t first = 0; first < keys.size(); first += Size(dim)) {
    Rotate(std::span(keys).subspan(first, Size(dim)));
    Rotate(std::span(values).subspan(first, Size(dim)));
  }
  WriteGroup(other, expected.data(), 0, 32, keys, values);
  RC_ASSERT(page == expected);
}

// Each number of a row is at the Lloyd-Max level nearest to it, and the quantized row's projection
// on the row is the row.
RC_GTEST_PROP(TurboQuant, TakesTheNearestLevelAndKeepsTheProjection, (std::uint32_t seed)) {
  RandomData random(seed);
  const NumberFormat format = std::array{NumberFormat::kTurbo4, NumberFormat::kTurbo3,
                                         NumberFormat::kTurbo2}[Size(random.Below(3))];
  // Max 1960, table I: the positive ones.
  const std::vector<double> levels =
      format == NumberFormat::kTurbo4
          ? std::vector{0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326}
      : format == NumberFormat::kTurbo3 ? std::vector{0.2451, 0.7560, 1.3440, 2.1520}
                                        : std::vector{0.4528, 1.5104};
  const std::size_t dim = Size(32 * (1 + random.Below(8)));
  const std::vector<float> row = random.Floats(dim, std::ldexp(1.0F, random.Below(16) - 8));
  std::vector<std::uint8_t> codes(dim);
  const CodeScale scale = Quantize(format, row, codes);
  const double rms = Norm(row) / std::sqrt(static_cast<double>(dim));
  double projection = 0.0;
  for (std::size_t c = 0; c < dim; ++c) {
    const double x = static_cast<double>(row[c]) / rms;
    const std::size_t half = levels.size();
    const double taken = codes[c] < half ? -levels[half - 1 - codes[c]] : levels[codes[c] - half];
    for (const double level : levels) {  // 1/127 of the largest is what their rounding may move
      const double slack = 1.5 * levels.back() / 127.0;
      RC_ASSERT(std::abs(x - taken) <= std::abs(x - level) + slack);
      RC_ASSERT(std::abs(x - taken) <= std::abs(x + level) + slack);
    }
    projection += static_cast<double>(Dequantize(format, codes[c], scale)) * x * rms;
  }
  RC_ASSERT(std::abs(projection / (Norm(row) * Norm(row)) - 1.0) < 2e-3);
}

// RotateKV's groups lie along the channels of a token, keys' too: each number within half a step.
RC_GTEST_PROP(RotateKv, EveryNumberIsWithinHalfAStepOfItsTokensRange, (std::uint32_t seed)) {
  RandomData random(seed);
  const int bits = 2 + 2 * random.Below(2);
  const NumberFormat format = bits == 4 ? NumberFormat::kRotate4 : NumberFormat::kRotate2;
  const int dim = 32 * (1 + random.Below(4));
  const PageLayout layout({format, format}, {.layers = 1, .kv_heads = 1, .head_dim = dim});
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<float> keys = random.WithOutliers(Size(kGroupSlots * dim), dim, 7);
  WriteGroup(layout, page.data(), 0, 0, keys, keys);
  std::vector<float> read(Size(dim));
  for (int slot = 0; slot < kGroupSlots; ++slot) {
    const auto row = std::span(keys).subspan(Size(slot * dim), Size(dim));
    Rotate(row);
    for (const auto reader : {ReadKey, ReadValue}) {
      reader(layout, page.data(), 0, slot, read);
      for (std::size_t first = 0; first < row.size(); first += 32) {
        const auto block = row.subspan(first, 32);
        const auto [low, high] = std::ranges::minmax(block);
        const float step = (high - low) / static_cast<float>((1 << bits) - 1);
        // Scale and minimum are rounded to half precision.
        const float slack = 2e-3F * (std::abs(low) + std::abs(high));
        for (std::size_t c = 0; c < 32; ++c) {
          RC_ASSERT(std::abs(read[first + c] - block[c]) <= step / 2 + slack);
        }
      }
    }
  }
}

TEST(RotatedFormats, HoldWhatIsNotANumberOrFarAway) {
  for (const FormatTraits& each : kNumberFormats) {
    if (!IsGrouped(each.format)) {
      continue;
    }
    const PageLayout layout({each.format, each.format},
                            {.layers = 1, .kv_heads = 1, .head_dim = 32});
    for (const float number :
         {0.0F, 1e-40F, -1e-12F, 1e30F, -60000.0F, std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<std::byte> page(layout.page_bytes(), std::byte{0xFF});
      const std::vector<float> rows(1024, number);
      WriteGroup(layout, page.data(), 0, 0, rows, rows);
      std::vector<float> out(32);
      for (const auto reader : {ReadKey, ReadValue}) {
        reader(layout, page.data(), 0, 5, out);
        for (const float x : out) {
          EXPECT_TRUE(std::isfinite(x)) << each.name << ' ' << number;
        }
      }
    }
  }
}

}  // namespace
}  // namespace vericache
