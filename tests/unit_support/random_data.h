// Reproducible random numbers for tests, and caches filled with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/size.h"
#include "base/types.h"
#include "kvcache/kv_cache.h"

namespace vericache::testing {

// Normal numbers from a seed.
class RandomData {
 public:
  explicit RandomData(std::uint32_t seed) : engine_(seed) {}

  float Normal(float deviation = 1.0F) { return deviation * Table()[engine_() % Table().size()]; }
  int Below(int n) { return static_cast<int>(engine_() % static_cast<std::uint32_t>(n)); }

  std::vector<float> Floats(std::size_t count, float deviation = 1.0F) {
    // Runs of a table, since drawing each number would take most of the tests' time.
    std::size_t at = engine_() % Table().size();
    std::vector<float> floats(count);
    for (float& number : floats) {
      number = deviation * Table()[at];
      at = at + 1 == Table().size() ? 0 : at + 1;
    }
    return floats;
  }

  // Rows of `channels` numbers; those of every `outlier_every`-th channel are a hundred times as
  // large, as the key channels of some models are.
  std::vector<float> WithOutliers(std::size_t count, int channels, int outlier_every) {
    std::vector<float> floats = Floats(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (i % Size(channels) % Size(outlier_every) == 1) {
        floats[i] *= 100.0F;
      }
    }
    return floats;
  }

 private:
  static const std::vector<float>& Table() {
    static const std::vector<float> table = [] {
      std::mt19937 engine(1);
      std::normal_distribution<float> normal;
      std::vector<float> numbers(65521);
      for (float& number : numbers) {
        number = normal(engine);
      }
      return numbers;
    }();
    return table;
  }

  std::mt19937 engine_;
};

// Adds `rows` random rows to every layer of `cache`.
inline void FillTail(KvCache& cache, int rows, RandomData& random) {
  if (!cache.Extend(rows)) {
    return;  // the test sees too few slots
  }
  const CacheGeometry& geometry = cache.geometry();
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const int first = cache.tail_slots(LayerId{layer}) - rows;
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < geometry.kv_heads; ++head) {
        cache.Write(LayerId{layer}, first + row, head, random.Floats(Size(geometry.head_dim)),
                    random.Floats(Size(geometry.head_dim)));
      }
    }
  }
}

}  // namespace vericache::testing
