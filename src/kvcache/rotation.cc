#include "kvcache/rotation.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace vericache {
namespace {

// Bits of pi: nothing about them was chosen.
constexpr std::array<std::uint64_t, 4> kSigns = {0x243F6A8885A308D3U, 0x13198A2E03707344U,
                                                 0xA4093822299F31D0U, 0x082EFA98EC4E6C89U};

void FlipSigns(std::span<float> row) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    if ((kSigns[i / 64 % kSigns.size()] >> (i % 64) & 1U) != 0) {
      row[i] = -row[i];
    }
  }
}

// Sums and differences of `block`, without a scale. Its own inverse but for that.
void Transform(float* block, std::size_t size) {
  for (std::size_t half = 1; half < size; half *= 2) {
    for (std::size_t first = 0; first < size; first += 2 * half) {
      float* const low = block + first;
      float* const high = low + half;
      for (std::size_t i = 0; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  }
}

void TransformBlocks(std::span<float> row) {
  const std::size_t size = std::size_t{1} << static_cast<unsigned>(std::countr_zero(row.size()));
  for (std::size_t first = 0; first < row.size(); first += size) {
    Transform(row.data() + first, size);
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  for (float& number : row) {
    number *= scale;
  }
}

}  // namespace

void Rotate(std::span<float> row) {
  FlipSigns(row);
  TransformBlocks(row);
}

void RotateBack(std::span<float> row) {
  TransformBlocks(row);
  FlipSigns(row);
}

}  // namespace vericache
