// One token's or group's numbers to codes and scales, and back: the arithmetic of every format that
// quantizes, one number at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/number_format.h"

namespace vericache {

inline constexpr float kLargestHalf = 65504.0F;  // of half precision

// A number that half precision can hold: clamped to it, 0 for a NaN.
float Sane(float number);

// How a group's or block's codes become numbers, as stored. Blocks and rows have no minimum.
struct CodeScale {
  std::uint16_t scale = 0;    // IEEE half precision
  std::uint16_t minimum = 0;  // IEEE half precision
};

// Bytes of what of it is stored.
constexpr std::size_t ScaleBytes(NumberFormat format) {
  const Grouping grouping = Traits(format).grouping;
  return grouping == Grouping::kGroups || grouping == Grouping::kTokens ? 4 : 2;
}

// Numbers that share a CodeScale, of a row of `head_dim` channels.
constexpr int ScaledTogether(NumberFormat format, int head_dim) {
  return Traits(format).grouping == Grouping::kRows ? head_dim : kGroupSlots;
}

// Quantizes numbers that share a scale: kGroupSlots of them, or of the row formats all of a row.
// `codes` is as long. NaNs count as 0, numbers beyond half precision's range as its largest.
CodeScale Quantize(NumberFormat format, std::span<const float> numbers,
                   std::span<std::uint8_t> codes);

// One number, with the same rounding as in a kernel.
float Dequantize(NumberFormat format, std::uint8_t code, CodeScale scale);

// Code `i` among kGroupSlots that lie together from `codes` on. 8-bit codes are bytes; 4-bit codes
// i and i + 16 share byte i; 2-bit codes lie in order, sixteen to a little-endian 32-bit word;
// 3-bit codes are their low two bits, as 2-bit codes, and then a word of their high bits. All
// unpack with shifts alone at every register width. Put expects zeros where nothing was put yet.
void PutCode(int bits, std::byte* codes, int i, std::uint8_t code);
std::uint8_t GetCode(int bits, const std::byte* codes, int i);

}  // namespace vericache
