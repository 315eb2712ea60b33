#include "attention/query_statistics.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr int kQueryHeads = 3;
constexpr int kQueryDim = 32;

// Whatever the chunks, threads and means: those of the plain formulas, of positions from
// kSkipped on.
RC_GTEST_PROP(QueryStatistics, AreThoseOfThePlainFormulas, (std::uint32_t seed)) {
  RandomData random(seed);
  const int positions = 1 + random.Below(60);
  std::vector<float> queries = random.Floats(Size(positions * kQueryHeads * kQueryDim));
  for (std::size_t i = 0; i < queries.size(); ++i) {
    queries[i] += i % kQueryDim == 5 ? 100.0F : 0.0F;  // a bias, as Qwen2's queries have
  }
  QueryStatistics statistics(2, kQueryHeads, kQueryDim);
  for (int first = 0; first < positions;) {
    const int rows = std::min(positions - first, 1 + random.Below(20));
    const int threads = 1 + random.Below(4);
    for (int thread = 0; thread < threads; ++thread) {
      statistics.Add(LayerId{1}, first, rows, queries.data() + first * kQueryHeads * kQueryDim,
                     thread, threads);
    }
    first += rows;
  }
  const int used = std::max(0, positions - QueryStatistics::kSkipped);
  RC_ASSERT(statistics.count(LayerId{1}) == used);
  RC_ASSERT(statistics.count(LayerId{0}) == 0);
  for (int head = 0; head < kQueryHeads; ++head) {
    const auto at = [&](int position, int c) {
      return static_cast<double>(queries[Size((position * kQueryHeads + head) * kQueryDim + c)]);
    };
    std::vector<double> mean(kQueryDim);
    for (int p = QueryStatistics::kSkipped; p < positions; ++p) {
      for (int c = 0; c < kQueryDim; ++c) {
        mean[Size(c)] += at(p, c) / used;
      }
    }
    const std::vector<float> actual = statistics.Mean(LayerId{1}, head);
    const std::vector<float> covariance = statistics.Covariance(LayerId{1}, head);
    for (int i = 0; i < kQueryDim; ++i) {
      RC_ASSERT(std::abs(static_cast<double>(actual[Size(i)]) - mean[Size(i)]) <= 2e-5);
      for (int j = 0; j < kQueryDim; ++j) {
        double expected = 0.0;
        for (int p = QueryStatistics::kSkipped; p < positions; ++p) {
          expected += (at(p, i) - mean[Size(i)]) * (at(p, j) - mean[Size(j)]) / used;
        }
        RC_ASSERT(std::abs(static_cast<double>(covariance[Size(i * kQueryDim + j)]) - expected) <=
                  5e-5);
      }
    }
  }
  RC_ASSERT(statistics.Mean(LayerId{0}, 0) == std::vector<float>(kQueryDim));
  RC_ASSERT(statistics.Covariance(LayerId{0}, 0) == std::vector<float>(kQueryDim * kQueryDim));
}

}  // namespace
}  // namespace vericache
