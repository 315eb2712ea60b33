#include "kvcache/quantize.h"

#include <algorithm>
#include <cmath>

#include "ggml.h"

namespace vericache {

float Sane(float number) {
  return std::isnan(number) ? 0.0F : std::clamp(number, -kLargestHalf, kLargestHalf);
}

namespace {

// Asymmetric rounding to nearest as KIVI's quant kernels do: scale = (max - min) / (2^b - 1). The
// codes are chosen against the 16-bit scale and minimum that are stored.
CodeScale QuantizeGroup(int bits, std::span<const float> numbers, std::span<std::uint8_t> codes) {
  float low = Sane(numbers[0]);
  float high = low;
  for (const float number : numbers) {
    low = std::min(low, Sane(number));
    high = std::max(high, Sane(number));
  }
  const auto levels = static_cast<float>((1U << static_cast<unsigned>(bits)) - 1U);
  const CodeScale stored{.scale = ggml_fp32_to_fp16((high - low) / levels),
                         .minimum = ggml_fp32_to_fp16(low)};
  const float scale = ggml_fp16_to_fp32(stored.scale);
  const float minimum = ggml_fp16_to_fp32(stored.minimum);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const float code = scale > 0.0F ? std::nearbyint((Sane(numbers[i]) - minimum) / scale) : 0.0F;
    codes[i] = static_cast<std::uint8_t>(std::clamp(code, 0.0F, levels));
  }
  return stored;
}

// A block of ggml's q8_0 or q4_0: codes from -127 to 127 by the largest magnitude, or from -8 to 7
// such that the number of the largest magnitude is -8. Codes are stored with 2^(b-1) added.
CodeScale QuantizeBlock(int bits, std::span<const float> numbers, std::span<std::uint8_t> codes) {
  float most = 0.0F;
  for (const float number : numbers) {
    most = std::abs(Sane(number)) > std::abs(most) ? Sane(number) : most;
  }
  const float scale = bits == 8 ? std::abs(most) / 127.0F : most / -8.0F;
  // A scale that half precision cannot hold is 0.
  const float inverse = std::abs(scale) < 1e-30F ? 0.0F : 1.0F / scale;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const float code = Sane(numbers[i]) * inverse;
    codes[i] = static_cast<std::uint8_t>(
        bits == 8 ? std::round(code) + 128.0F : std::clamp(std::floor(code + 8.5F), 0.0F, 15.0F));
  }
  return {.scale = ggml_fp32_to_fp16(scale)};
}

// The largest Lloyd-Max level of a normal distribution of deviation 1 (Max 1960, table I).
float LargestLevel(int bits) { return bits == 4 ? 2.7326F : bits == 3 ? 2.1520F : 1.5104F; }

// The number of thresholds, halfway between adjacent levels, that `number` lies above.
std::uint8_t NearestLevel(int bits, const std::array<std::uint8_t, 16>& levels, float number) {
  unsigned code = 0;
  for (std::size_t i = 0; i + 1 < std::size_t{1} << static_cast<unsigned>(bits); ++i) {
    code += 2.0F * number > static_cast<float>(levels[i] + levels[i + 1]) ? 1U : 0U;
  }
  return static_cast<std::uint8_t>(code);
}

// The nearest level of each number over the row's root mean square. The scale is not the one of the
// least squared error, which shrinks the row by several percent at few bits, and with it all scores
// of a key: it is the one by which the quantized row's projection on the row is the row (as
// RaBitQ's estimator, Gao and Long 2024, arXiv 2405.12497, has it).
CodeScale QuantizeRow(int bits, std::span<const float> numbers, std::span<std::uint8_t> codes) {
  float square = 0.0F;
  for (const float number : numbers) {
    square = std::fma(Sane(number), Sane(number), square);
  }
  const float rms = std::sqrt(square / static_cast<float>(numbers.size()));
  const float unit = rms > 1e-30F ? 127.0F / (LargestLevel(bits) * rms) : 0.0F;
  const std::array<std::uint8_t, 16> levels = RowLevels(bits);
  float product = 0.0F;  // of the row and its levels
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    codes[i] = NearestLevel(bits, levels, Sane(numbers[i]) * unit + 128.0F);
    const float level = static_cast<float>(levels[codes[i]]) - 128.0F;
    product = std::fma(Sane(numbers[i]), level, product);
  }
  return {.scale = ggml_fp32_to_fp16(product > 0.0F ? square / product : 0.0F)};
}

}  // namespace

CodeScale Quantize(NumberFormat format, std::span<const float> numbers,
                   std::span<std::uint8_t> codes) {
  const FormatTraits& traits = Traits(format);
  switch (traits.grouping) {
    case Grouping::kBlocks:
      return QuantizeBlock(traits.bits, numbers, codes);
    case Grouping::kRows:
      return QuantizeRow(traits.bits, numbers, codes);
    default:
      return QuantizeGroup(traits.bits, numbers, codes);
  }
}

float Dequantize(NumberFormat format, std::uint8_t code, CodeScale scale) {
  const FormatTraits& traits = Traits(format);
  switch (traits.grouping) {
    case Grouping::kBlocks:
      return (static_cast<float>(code) - static_cast<float>(1 << (traits.bits - 1))) *
             ggml_fp16_to_fp32(scale.scale);
    case Grouping::kRows:
      return (static_cast<float>(RowLevels(traits.bits)[code]) - 128.0F) *
             ggml_fp16_to_fp32(scale.scale);
    default:
      return std::fma(static_cast<float>(code), ggml_fp16_to_fp32(scale.scale),
                      ggml_fp16_to_fp32(scale.minimum));
  }
}

void PutCode(int bits, std::byte* codes, int i, std::uint8_t code) {
  switch (bits) {
    case 8:
      codes[i] = static_cast<std::byte>(code);
      return;
    case 4:
      codes[i % 16] |= static_cast<std::byte>(code << (i < 16 ? 0 : 4));
      return;
    case 3:
      codes[8 + i / 8] |= static_cast<std::byte>((code >> 2) << (i % 8));
      [[fallthrough]];
    default:
      codes[i / 4] |= static_cast<std::byte>((code & 3) << (2 * (i % 4)));
  }
}

std::uint8_t GetCode(int bits, const std::byte* codes, int i) {
  const auto byte = [codes](int at) { return static_cast<unsigned>(codes[at]); };
  if (bits == 8) {
    return static_cast<std::uint8_t>(byte(i));
  }
  if (bits == 4) {
    return static_cast<std::uint8_t>((byte(i % 16) >> (i < 16 ? 0 : 4)) & 15U);
  }
  const unsigned low = (byte(i / 4) >> (2 * (i % 4))) & 3U;
  const unsigned high = bits == 3 ? (byte(8 + i / 8) >> (i % 8)) & 1U : 0U;
  return static_cast<std::uint8_t>(low | high << 2U);
}

}  // namespace vericache
