// KVQuant's formats against their definition in float64.
#include "kvcache/kvquant.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "ggml.h"
#include "kvcache/kv_cache.h"
#include "unit_support/random_data.h"
#include "unit_support/rope.h"

namespace vericache {
namespace {

using testing::MakeRopeTable;
using testing::RandomData;
using testing::RotatedRow;

constexpr NumberFormat kFormats[] = {NumberFormat::kKvQuant4, NumberFormat::kKvQuant3,
                                     NumberFormat::kKvQuant2};

NumberFormat AnyFormat(RandomData& random) { return kFormats[random.Below(3)]; }

float InHalf(float number) { return ggml_fp16_to_fp32(ggml_fp32_to_fp16(number)); }

// How far `number` is from the nearest of a format's levels over a range.
double NearestError(NumberFormat format, double number, double center, double half) {
  const KvQuantLevels& levels = kNormalLevels[Size(Traits(format).bits - 2)];
  double nearest = 1e300;
  for (std::size_t code = 0; code < Size(1 << Traits(format).bits); ++code) {
    const double level = (levels[code] - 128) / 127.0;
    nearest = std::min(nearest, std::abs(number - (center + half * level)));
  }
  return nearest;
}

// Each of `numbers` is read back as it was in half precision where it is one of the `places` of the
// largest distances, else within the nearest level's error. `slack`: of float32.
void CheckOutliersAndLevels(std::span<const float> numbers, std::span<const float> read,
                            std::span<const double> distances, std::span<const double> errors,
                            int places, std::span<const double> slacks) {
  std::vector<double> order(distances.begin(), distances.end());
  std::ranges::sort(order, std::greater());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double slack = slacks[i];
    const bool surely_apart =
        places > 0 && distances[i] > order[Size(places)] * (1.0 + 1e-4) + slack;
    const bool exact = read[i] == InHalf(numbers[i]);
    if (surely_apart) {
      RC_ASSERT(exact);
    }
    RC_ASSERT(exact || std::abs(static_cast<double>(read[i]) - static_cast<double>(numbers[i])) <=
                           errors[i] + slack);
  }
}

struct Written {
  Written(KvFormat format, int dim, std::shared_ptr<const KvQuant> kvquant)
      : layout(format, {.layers = 1, .kv_heads = 1, .head_dim = dim}, std::move(kvquant)),
        page(layout.page_bytes()) {}

  void Write(int first_slot, std::span<const float> keys, std::span<const float> values,
             std::span<const int> positions = {}) {
    WriteGroup(layout, page.data(), 0, first_slot, keys, values, positions);
  }
  std::vector<float> Read(decltype(ReadKey) reader, int first_slot) const {
    const std::size_t dim = Size(layout.head_dim());
    std::vector<float> rows(kGroupSlots * dim);
    for (int s = 0; s < kGroupSlots; ++s) {
      reader(layout, page.data(), 0, first_slot + s, std::span(rows).subspan(Size(s) * dim, dim));
    }
    return rows;
  }

  PageLayout layout;
  std::vector<std::byte> page;
};

RC_GTEST_PROP(KvQuant, KeysAreAtTheNearestLevelOrExact, (std::uint32_t seed)) {
  RandomData random(seed);
  const int dim = 32 * (1 + random.Below(8));
  const KvFormat format{.keys = AnyFormat(random),
                        .values = NumberFormat::kF16,
                        .outliers = std::array{0.0F, 0.01F, 0.05F}[Size(random.Below(3))]};
  const auto kvquant = std::make_shared<KvQuant>();
  const auto sample = random.WithOutliers(Size(100 * dim), dim, 7);
  SetKeyRanges(*kvquant, 1, dim, format.outliers, sample, {});
  Written written(format, dim, kvquant);
  const std::vector<float> keys = random.WithOutliers(Size(kGroupSlots * dim), dim, 7);
  const int half = 32 * random.Below(2);
  written.Write(half, keys, keys);
  std::vector<double> errors;
  std::vector<double> slacks;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double center = kvquant->key_centers[i % Size(dim)];
    const double range = kvquant->key_halves[i % Size(dim)];
    errors.push_back(NearestError(format.keys, keys[i], center, range));
    slacks.push_back(1e-5 * (std::abs(center) + range));
  }
  CheckOutliersAndLevels(keys, written.Read(ReadKey, half), errors, errors,
                         OutlierPlaces(format.outliers, dim), slacks);
}

RC_GTEST_PROP(KvQuant, ValuesAreAtTheNearestLevelOfTheirTokenOrExact, (std::uint32_t seed)) {
  RandomData random(seed);
  const std::size_t dim = Size(32 * (1 + random.Below(8)));
  const KvFormat format{.keys = NumberFormat::kF16,
                        .values = AnyFormat(random),
                        .outliers = std::array{0.0F, 0.01F, 0.05F}[Size(random.Below(3))]};
  Written written(format, static_cast<int>(dim), nullptr);
  std::vector<float> values = random.Floats(kGroupSlots * dim);
  for (int i = 0; i < 10; ++i) {
    values[Size(random.Below(static_cast<int>(values.size())))] *= 30.0F;
  }
  const int half = 32 * random.Below(2);
  written.Write(half, values, values);
  const std::vector<float> read = written.Read(ReadValue, half);

  std::vector<double> distances;
  for (std::size_t first = 0; first < values.size(); first += dim) {
    double mean = 0.0;
    double square = 0.0;
    for (std::size_t c = 0; c < dim; ++c) {
      mean += values[first + c] / static_cast<double>(dim);
    }
    for (std::size_t c = 0; c < dim; ++c) {
      square += std::pow(values[first + c] - mean, 2.0) / static_cast<double>(dim);
    }
    for (std::size_t c = 0; c < dim; ++c) {
      distances.push_back(std::abs(values[first + c] - mean) / std::sqrt(square));
    }
  }
  // What was kept apart is what was; the others' range is that of their token.
  const int places = OutlierPlaces(format.outliers, static_cast<int>(dim));
  std::vector<double> order = distances;
  std::ranges::sort(order, std::greater());
  std::vector<double> errors;
  std::vector<double> slacks;
  for (std::size_t first = 0; first < values.size(); first += dim) {
    double low = 1e300;
    double high = -1e300;
    for (std::size_t c = first; c < first + dim; ++c) {
      if (distances[c] <= order[Size(places)]) {
        low = std::min<double>(low, values[c]);
        high = std::max<double>(high, values[c]);
      }
    }
    const double range = (high - low) / 2.0;
    for (std::size_t c = first; c < first + dim; ++c) {
      errors.push_back(NearestError(format.values, values[c], low + range, range));
      slacks.push_back(2e-3 * (std::abs(low) + std::abs(high)));  // ranges in half precision
    }
  }
  CheckOutliersAndLevels(values, read, distances, errors, places, slacks);
}

RC_GTEST_PROP(RopeTable, TurnsAsFloat64AndBack, (std::uint32_t seed)) {
  RandomData random(seed);
  const int dim = 32 * (1 + random.Below(4));
  const int dims = random.Below(3) == 0 ? dim / 2 : dim;
  const bool neox = random.Below(2) == 0;
  const double amplitude = random.Below(2) == 0 ? 1.0 : 1.2;
  const auto table = MakeRopeTable(dims, neox, 5000, amplitude);
  RC_ASSERT(table->positions() >= 5000);
  const std::vector<float> row = random.Floats(Size(dim));
  const int position = random.Below(5000);
  std::vector<float> turned = row;
  table->Turn(turned, position);
  const std::vector<double> expected = RotatedRow(row, dims, neox, position, 1.0, amplitude);
  for (std::size_t c = 0; c < row.size(); ++c) {
    RC_ASSERT(std::abs(turned[c] - expected[c]) < 5e-6);
  }
  table->TurnBack(turned, position);
  for (std::size_t c = 0; c < row.size(); ++c) {
    RC_ASSERT(std::abs(turned[c] - row[c]) < 5e-6F);
  }
}

// Turned back by its position each key is at the nearest level of what the key turned back was.
RC_GTEST_PROP(KvQuant, KeysAreHeldBeforeRope, (std::uint32_t seed)) {
  RandomData random(seed);
  constexpr int kDim = 64;
  const bool neox = random.Below(2) == 0;
  const KvFormat format{.keys = AnyFormat(random), .values = NumberFormat::kF16, .outliers = 0.0F};
  const auto kvquant = std::make_shared<KvQuant>();
  kvquant->rope = MakeRopeTable(kDim, neox, 100'000);
  Written written(format, kDim, kvquant);
  std::vector<int> positions;
  std::vector<float> keys;
  for (int s = 0; s < kGroupSlots; ++s) {
    positions.push_back(random.Below(100'000));
    // An outlier channel before RoPE, which is none of one channel after it.
    std::vector<float> row = random.Floats(kDim, 0.5F);
    row[5] += 2.0F;
    for (const double number : RotatedRow(row, kDim, neox, positions.back(), 1.0)) {
      keys.push_back(static_cast<float>(number));
    }
  }
  written.Write(32, keys, keys, positions);
  const std::vector<float> read = written.Read(ReadKey, 32);
  for (std::size_t s = 0; s < kGroupSlots; ++s) {
    const auto row = [&](const std::vector<float>& rows) {
      return RotatedRow(std::span(rows).subspan(s * kDim, kDim), kDim, neox, positions[s], -1.0);
    };
    const std::vector<double> before = row(keys);
    const std::vector<double> after = row(read);
    for (std::size_t c = 0; c < kDim; ++c) {
      RC_ASSERT(std::abs(after[c] - before[c]) <=
                NearestError(format.keys, before[c], 0.0, kNormalCut) + 1e-4);
    }
  }
}

TEST(SetKeyRanges, CutsHalfTheOutliersOffAtEachEndOfAChannel) {
  std::vector<float> keys;
  for (int row = 0; row < 200; ++row) {
    for (int c = 0; c < 32; ++c) {
      keys.push_back(static_cast<float>((row * 37) % 200 + 1000 * c));
    }
  }
  KvQuant kvquant;
  SetKeyRanges(kvquant, 1, 32, 0.01F, keys, {});
  for (std::size_t c = 0; c < 32; ++c) {  // 0 to 199 without 0 and 199
    EXPECT_EQ(kvquant.key_centers[c], 99.5F + 1000.0F * static_cast<float>(c));
    EXPECT_EQ(kvquant.key_halves[c], 98.5F);
  }
}

TEST(KvQuant, AConstantIsItsNumber) {
  for (const NumberFormat format : kFormats) {
    const auto kvquant = std::make_shared<KvQuant>();
    for (const float number : {0.0F, 1.5F, -3.125F}) {
      const std::vector<float> rows(kGroupSlots * 32, number);
      SetKeyRanges(*kvquant, 1, 32, 0.01F, rows, {});
      Written written({format, format}, 32, std::make_shared<const KvQuant>(*kvquant));
      written.Write(0, rows, rows);
      EXPECT_EQ(written.Read(ReadKey, 0), rows);
      EXPECT_EQ(written.Read(ReadValue, 0), rows);
    }
  }
}

TEST(KvQuant, OverwritesWhatWasThereBefore) {
  RandomData random(1);
  for (const NumberFormat format : kFormats) {
    Written used({format, format}, 64, nullptr);
    used.Write(32, random.Floats(2048), random.Floats(2048));
    Written fresh({format, format}, 64, nullptr);
    const std::vector<float> rows = random.Floats(2048);
    used.Write(32, rows, rows);
    fresh.Write(32, rows, rows);
    EXPECT_EQ(used.page, fresh.page);
  }
}

}  // namespace
}  // namespace vericache
