#include "attention/key_attention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr int kDim = 16;

// The plain formula, in float64: attention over the slots of `seen`, and of them over `counted`.
std::vector<double> Naive(const KvCache& cache, std::span<const float> queries, int rows, int heads,
                          int kv_head, std::span<const SlotRange> seen, SlotRange counted,
                          bool sum) {
  const int group = heads / cache.geometry().kv_heads;
  const int first = cache.tail_slots(LayerId{0}) - rows;
  std::vector<double> result(Size(counted.end));
  std::vector<float> key(kDim);
  std::vector<float> value(kDim);
  for (int q = 0; q < rows * group; ++q) {
    const int row = q / group;
    const float* query = queries.data() + (row * heads + kv_head * group + q % group) * kDim;
    std::vector<double> weights(Size(first + rows));
    double total = 0.0;
    for (const SlotRange& range : seen) {
      for (int slot = range.begin; slot < std::min(range.end, first + row + 1); ++slot) {
        cache.ReadTail(LayerId{0}, slot, kv_head, key, value);
        double score = 0.0;
        for (std::size_t c = 0; c < kDim; ++c) {
          score += static_cast<double>(query[c]) * static_cast<double>(key[c]);
        }
        weights[Size(slot)] = std::exp(score / std::sqrt(kDim));
        total += weights[Size(slot)];
      }
    }
    for (int slot = counted.begin; slot < counted.end; ++slot) {
      double& to = result[Size(slot)];
      const double weight = weights[Size(slot)] / total;
      to = sum ? to + weight : std::max(to, weight);
    }
  }
  return result;
}

RC_GTEST_PROP(KeyAttention, IsThatOfThePlainFormulaWhateverTheThreads, (std::uint32_t seed)) {
  RandomData random(seed);
  PagePool pool(Bytes{1U << 22U});
  const CacheGeometry geometry{.layers = 1, .kv_heads = 1 + random.Below(2), .head_dim = kDim};
  const int heads = geometry.kv_heads * (1 + random.Below(3));
  KvCache cache(pool, PageKind::kTransient, geometry, {NumberFormat::kF32, NumberFormat::kF32});
  const int rows = 1 + random.Below(20);
  const int before = 1 + random.Below(120);
  testing::FillTail(cache, before + rows, random);
  const std::vector<float> queries = random.Floats(Size(rows * heads * kDim), 2.0F);
  const bool sum = random.Below(2) == 0;
  const int threads = 1 + random.Below(4);
  KeyAttention attention(geometry, heads, before + rows,
                         sum ? KeyAttention::Over::kSum : KeyAttention::Over::kLargest, threads);
  std::vector<SlotRange> seen = {{.begin = 0, .end = before + rows}};
  SlotRange counted = seen[0];
  if (random.Below(2) == 0) {  // sinks, a chunk and the rows themselves, as KVzip
    const int start = random.Below(before);
    counted = {.begin = start, .end = start + 1 + random.Below(before - start)};
    seen = {
        {.begin = 0, .end = std::min(4, start)}, counted, {.begin = before, .end = before + rows}};
    attention.Restrict(seen, counted);
  }
  for (int thread = 0; thread < threads; ++thread) {
    attention.Add(LayerId{0}, cache.tail_view(LayerId{0}), before, rows, queries.data(), thread,
                  threads);
  }
  for (int head = 0; head < geometry.kv_heads; ++head) {
    const auto expected = Naive(cache, queries, rows, heads, head, seen, counted, sum);
    const std::vector<float> actual = attention.weights(LayerId{0}, head);
    RC_ASSERT(actual.size() == Size(before + rows));
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double want = i < expected.size() ? expected[i] : 0.0;
      RC_ASSERT(std::abs(static_cast<double>(actual[i]) - want) <= 2e-5 * want + 1e-8);
    }
  }
}

}  // namespace
}  // namespace vericache
