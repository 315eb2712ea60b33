// Nearly normal numbers that a script of tests/reference draws, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vericache::testing {

// Multiples of 1/128, exact in half precision: kvquant.py's Draws(1).
class Draws {
 public:
  float One() {
    int total = -510;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 1664525U + 1013904223U;
      total += static_cast<int>(state_ >> 24U);
    }
    return static_cast<float>(total) / 128.0F;
  }
  std::vector<float> operator()(std::size_t count) {
    std::vector<float> numbers(count);
    for (float& number : numbers) {
      number = One();
    }
    return numbers;
  }

 private:
  std::uint32_t state_ = 1;
};

}  // namespace vericache::testing
