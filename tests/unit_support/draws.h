// The numbers that scripts of tests/reference quantize, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/size.h"
#include "kvcache/number_format.h"

namespace vericache::testing {

// `count` nearly normal numbers, multiples of 1/128, exact in half precision; `state` goes on.
inline std::vector<float> Draw(std::uint32_t& state, std::size_t count) {
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    int total = -510;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525U + 1013904223U;
      total += static_cast<int>(state >> 24U);
    }
    number = static_cast<float>(total) / 128.0F;
  }
  return numbers;
}

// What kvquant.py's draw() gives: samples, and keys and values of kGroupSlots slots of one head,
// slot by slot; some channels of keys are larger.
struct DrawnNumbers {
  static constexpr int kDim = 32;

  DrawnNumbers() {
    std::uint32_t state = 1;
    samples = Draw(state, 2000);
    keys = Draw(state, Size(kGroupSlots * kDim));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] *= static_cast<float>(1 << (i % 4));
    }
    values = Draw(state, keys.size());
  }

  std::vector<float> samples, keys, values;
};

}  // namespace vericache::testing
