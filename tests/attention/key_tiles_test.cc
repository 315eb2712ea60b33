#include "attention/key_tiles.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

RC_GTEST_PROP(KeyTiles, ProductsAreThoseOfTheKeysThatWereWritten, (std::uint32_t seed)) {
  RandomData random(seed);
  PagePool pool(Bytes{1U << 22U});
  const NumberFormat format = std::array{NumberFormat::kF32, NumberFormat::kF16,
                                         NumberFormat::kBF16}[Size(random.Below(3))];
  const CacheGeometry geometry{
      .layers = 1, .kv_heads = 1 + random.Below(3), .head_dim = 16 * (1 + random.Below(5))};
  const std::size_t dim = Size(geometry.head_dim);
  KvCache cache(pool, PageKind::kTransient, geometry, {format, format});
  const int positions = 1 + random.Below(100);
  testing::FillTail(cache, positions, random);
  const int count = 1 + random.Below(9);
  const std::vector<float> rows = random.Floats(Size(count) * dim);
  const int head = random.Below(geometry.kv_heads);
  const int slot = random.Below(positions);
  std::vector<float> tile(dim * kGroupSlots);
  const std::size_t stride = kGroupSlots + Size(random.Below(3));
  std::vector<float> out(Size(count) * stride);
  LoadKeyTile(cache.tail_view(LayerId{0}), head, slot / kGroupSlots * kGroupSlots, tile);
  MultiplyTile(rows, tile, out.data(), stride);
  std::vector<float> key(dim);
  std::vector<float> value(dim);
  cache.ReadTail(LayerId{0}, slot, head, key, value);
  for (int i = 0; i < count; ++i) {
    double sum = 0.0;
    double size = 0.0;
    for (std::size_t c = 0; c < dim; ++c) {
      const double term =
          static_cast<double>(rows[Size(i) * dim + c]) * static_cast<double>(key[c]);
      sum += term;
      size += std::abs(term);
    }
    const double error =
        std::abs(static_cast<double>(out[Size(i) * stride + Size(slot % kGroupSlots)]) - sum);
    RC_ASSERT(error <= 1e-6 * size + 1e-9);
  }
}

RC_GTEST_PROP(KeyTiles, SoftmaxIsThatOfThePlainFormula, (std::uint32_t seed)) {
  RandomData random(seed);
  const int count = 1 + random.Below(70);
  std::vector<float> scores = random.Floats(Size(count), 20.0F);
  if (count > 1 && random.Below(2) == 0) {
    scores[0] = -std::numeric_limits<float>::infinity();  // a position that is not seen
  }
  const double largest = *std::ranges::max_element(scores);
  std::vector<double> expected;
  double sum = 0.0;
  for (const float score : scores) {
    expected.push_back(std::exp(static_cast<double>(score) - largest));
    sum += expected.back();
  }
  Softmax(scores);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double weight = expected[i] / sum;
    RC_ASSERT(std::abs(static_cast<double>(scores[i]) - weight) <= 2e-5 * weight + 1e-12);
  }
}

}  // namespace
}  // namespace vericache
