#include "kvcache/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "ggml.h"

namespace vericache {
namespace {

float LoadNumber(NumberFormat format, const std::byte* at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, NumberBytes(format));
  switch (format) {
    case NumberFormat::kF16:
      return ggml_fp16_to_fp32(static_cast<ggml_fp16_t>(bits));
    case NumberFormat::kBF16:
      return ggml_bf16_to_fp32({static_cast<std::uint16_t>(bits)});
    default: {
      float value = 0.0F;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
  }
}

void StoreNumber(NumberFormat format, float value, std::byte* at) {
  switch (format) {
    case NumberFormat::kF16: {
      // Saturated: an infinity would turn attention into NaNs.
      constexpr float kLargest = 65504.0F;
      const ggml_fp16_t bits = ggml_fp32_to_fp16(std::clamp(value, -kLargest, kLargest));
      std::memcpy(at, &bits, sizeof(bits));
      return;
    }
    case NumberFormat::kBF16: {
      const ggml_bf16_t bits = ggml_fp32_to_bf16(value);
      std::memcpy(at, &bits, sizeof(bits));
      return;
    }
    default:
      std::memcpy(at, &value, sizeof(value));
  }
}

std::size_t PlainKeyIndex(int slot, int channel) {
  return static_cast<std::size_t>(channel * kGroupSlots + slot % kGroupSlots);
}

// Codes of one group: 4-bit codes i and i + 16 share byte i; 2-bit codes lie in order, sixteen to a
// little-endian 32-bit word. Both unpack with shifts alone at every register width.
void PutCode(int bits, std::byte* codes, int i, unsigned code) {
  if (bits == 8) {
    codes[i] = static_cast<std::byte>(code);
  } else if (bits == 4) {
    codes[i % 16] |= static_cast<std::byte>(code << (i < 16 ? 0 : 4));
  } else {
    codes[i / 4] |= static_cast<std::byte>(code << (2 * (i % 4)));
  }
}

unsigned GetCode(int bits, const std::byte* codes, int i) {
  if (bits == 8) {
    return static_cast<unsigned>(codes[i]);
  }
  if (bits == 4) {
    return (static_cast<unsigned>(codes[i % 16]) >> (i < 16 ? 0 : 4)) & 15U;
  }
  return (static_cast<unsigned>(codes[i / 4]) >> (2 * (i % 4))) & 3U;
}

// Asymmetric rounding to nearest as KIVI's quant kernels do: scale = (max - min) / (2^b - 1). The
// codes are chosen against the 16-bit scale and minimum that are stored.
// Numbers beyond half precision's range count as its largest, and NaNs as 0.
GroupScale QuantizeGroup(int bits, std::array<float, kGroupSlots> numbers, std::byte* codes) {
  constexpr float kLargest = 65504.0F;
  for (float& number : numbers) {
    number = std::isnan(number) ? 0.0F : std::clamp(number, -kLargest, kLargest);
  }
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  const auto levels = static_cast<float>((1U << static_cast<unsigned>(bits)) - 1U);
  const GroupScale stored{.scale = ggml_fp32_to_fp16((*high - *low) / levels),
                          .minimum = ggml_fp32_to_fp16(*low)};
  const float scale = ggml_fp16_to_fp32(stored.scale);
  const float minimum = ggml_fp16_to_fp32(stored.minimum);
  std::memset(codes, 0, static_cast<std::size_t>(kGroupSlots * bits / 8));
  for (int i = 0; i < kGroupSlots; ++i) {
    const float code =
        scale > 0.0F ? std::nearbyint((numbers[static_cast<std::size_t>(i)] - minimum) / scale)
                     : 0.0F;
    PutCode(bits, codes, i, static_cast<unsigned>(std::clamp(code, 0.0F, levels)));
  }
  return stored;
}

// A block of ggml's q8_0 or q4_0: codes from -127 to 127 by the largest magnitude, or from -8 to 7
// such that the number of the largest magnitude is -8. Codes are stored with 2^(b-1) added. Returns
// the scale.
std::uint16_t QuantizeBlock(int bits, std::array<float, kGroupSlots> numbers, std::byte* codes) {
  constexpr float kLargest = 65504.0F;
  float most = 0.0F;
  for (float& number : numbers) {
    number = std::isnan(number) ? 0.0F : std::clamp(number, -kLargest, kLargest);
    most = std::abs(number) > std::abs(most) ? number : most;
  }
  const float scale = bits == 8 ? std::abs(most) / 127.0F : most / -8.0F;
  // A scale that half precision cannot hold is 0.
  const float inverse = std::abs(scale) < 1e-30F ? 0.0F : 1.0F / scale;
  std::memset(codes, 0, static_cast<std::size_t>(kGroupSlots * bits / 8));
  for (int i = 0; i < kGroupSlots; ++i) {
    const float code = numbers[static_cast<std::size_t>(i)] * inverse;
    const float stored =
        bits == 8 ? std::round(code) + 128.0F : std::clamp(std::floor(code + 8.5F), 0.0F, 15.0F);
    PutCode(bits, codes, i, static_cast<unsigned>(stored));
  }
  return ggml_fp32_to_fp16(scale);
}

// Quantizes a group or block, and stores what belongs to its codes.
void Quantize(NumberFormat format, const std::array<float, kGroupSlots>& numbers, std::byte* codes,
              std::byte* scale_at) {
  if (IsBlocked(format)) {
    const std::uint16_t scale = QuantizeBlock(CodeBits(format), numbers, codes);
    std::memcpy(scale_at, &scale, sizeof(scale));
  } else {
    const GroupScale scale = QuantizeGroup(CodeBits(format), numbers, codes);
    std::memcpy(scale_at, &scale, sizeof(scale));
  }
}

// One dequantized number, with the same rounding as in a kernel. `at` is its place among the codes.
float Dequantize(NumberFormat format, const std::byte* codes, const std::byte* scale_at, int at) {
  const int bits = CodeBits(format);
  const auto code = static_cast<float>(GetCode(bits, codes, at));
  if (IsBlocked(format)) {
    std::uint16_t scale = 0;
    std::memcpy(&scale, scale_at, sizeof(scale));
    return (code - static_cast<float>(1 << (bits - 1))) * ggml_fp16_to_fp32(scale);
  }
  GroupScale stored{};
  std::memcpy(&stored, scale_at, sizeof(stored));
  return std::fma(code, ggml_fp16_to_fp32(stored.scale), ggml_fp16_to_fp32(stored.minimum));
}

// Scales of keys follow the codes of a half page: of groups one per channel, of blocks
// [head_dim / 32][slot]. Scales of values follow the codes of the page, [slot][head_dim / 32].
std::size_t KeyScaleOffset(const PageLayout& layout, int slot, int channel) {
  const NumberFormat format = layout.format().keys;
  const int index =
      IsBlocked(format) ? channel / kGroupSlots * kGroupSlots + slot % kGroupSlots : channel;
  return CodeBytes(format, layout.head_dim() * kGroupSlots) +
         static_cast<std::size_t>(index) * ScaleBytes(format);
}

std::size_t ValueScaleOffset(const PageLayout& layout, int slot, int group) {
  const int groups = layout.head_dim() / kGroupSlots;
  return CodeBytes(layout.format().values, layout.head_dim() * kPageSlots) +
         static_cast<std::size_t>(slot * groups + group) * ScaleBytes(layout.format().values);
}

// The codes of channel `c` in a half page of keys.
std::size_t KeyCodes(NumberFormat format, int c) { return CodeBytes(format, c * kGroupSlots); }

void WriteKeyGroup(const PageLayout& layout, std::byte* block, std::span<const float> keys) {
  const NumberFormat format = layout.format().keys;
  for (int c = 0; c < layout.head_dim(); ++c) {
    std::array<float, kGroupSlots> numbers{};
    for (int s = 0; s < kGroupSlots; ++s) {
      numbers[static_cast<std::size_t>(s)] =
          keys[static_cast<std::size_t>(s * layout.head_dim() + c)];
    }
    Quantize(format, numbers, block + KeyCodes(format, c), block + KeyScaleOffset(layout, 0, c));
  }
}

// Blocks lie along the channels, and their codes [channel][slot] as those of other keys do.
void WriteKeyBlocks(const PageLayout& layout, std::byte* block, std::span<const float> keys) {
  const NumberFormat format = layout.format().keys;
  const int bits = CodeBits(format);
  std::memset(block, 0, CodeBytes(format, layout.head_dim() * kGroupSlots));
  for (int s = 0; s < kGroupSlots; ++s) {
    for (int first = 0; first < layout.head_dim(); first += kGroupSlots) {
      std::array<float, kGroupSlots> numbers{};
      std::copy_n(keys.begin() + static_cast<std::ptrdiff_t>(s * layout.head_dim() + first),
                  kGroupSlots, numbers.begin());
      std::array<std::byte, kGroupSlots> codes{};
      Quantize(format, numbers, codes.data(), block + KeyScaleOffset(layout, s, first));
      for (int i = 0; i < kGroupSlots; ++i) {
        PutCode(bits, block + KeyCodes(format, first + i), s, GetCode(bits, codes.data(), i));
      }
    }
  }
}

void WriteValueGroups(const PageLayout& layout, std::byte* block, int slot,
                      std::span<const float> value) {
  const NumberFormat format = layout.format().values;
  for (int g = 0; g < layout.head_dim() / kGroupSlots; ++g) {
    std::array<float, kGroupSlots> numbers{};
    std::copy_n(value.begin() + static_cast<std::ptrdiff_t>(g * kGroupSlots), kGroupSlots,
                numbers.begin());
    Quantize(format, numbers, block + CodeBytes(format, slot * layout.head_dim() + g * kGroupSlots),
             block + ValueScaleOffset(layout, slot, g));
  }
}

void WritePlainKey(const PageLayout& layout, std::byte* page, int head, int slot,
                   std::span<const float> key) {
  const NumberFormat format = layout.format().keys;
  std::byte* block = page + layout.KeyOffset(head, slot);
  for (int c = 0; c < layout.head_dim(); ++c) {
    StoreNumber(format, key[static_cast<std::size_t>(c)],
                block + NumberBytes(format) * PlainKeyIndex(slot, c));
  }
}

void WritePlainValue(const PageLayout& layout, std::byte* page, int head, int slot,
                     std::span<const float> value) {
  const NumberFormat format = layout.format().values;
  std::byte* row = page + layout.ValueOffset(head) +
                   NumberBytes(format) * static_cast<std::size_t>(slot * layout.head_dim());
  for (const float number : value) {
    StoreNumber(format, number, row);
    row += NumberBytes(format);
  }
}

std::size_t HalfKeyBytes(NumberFormat format, int head_dim) {
  const int count = kGroupSlots * head_dim;
  return IsGrouped(format)
             ? CodeBytes(format, count) + static_cast<std::size_t>(head_dim) * ScaleBytes(format)
             : static_cast<std::size_t>(count) * NumberBytes(format);
}

std::size_t ValueBytes(NumberFormat format, int head_dim) {
  const int count = kPageSlots * head_dim;
  return IsGrouped(format) ? CodeBytes(format, count) +
                                 static_cast<std::size_t>(count / kGroupSlots) * ScaleBytes(format)
                           : static_cast<std::size_t>(count) * NumberBytes(format);
}

}  // namespace

std::string_view Name(NumberFormat format) {
  switch (format) {
    case NumberFormat::kF32:
      return "f32";
    case NumberFormat::kF16:
      return "f16";
    case NumberFormat::kBF16:
      return "bf16";
    case NumberFormat::kQ8:
      return "q8";
    case NumberFormat::kQ4:
      return "q4";
    case NumberFormat::kKivi4:
      return "kivi4";
    case NumberFormat::kKivi2:
      return "kivi2";
  }
  return "?";
}

std::optional<NumberFormat> ParseNumberFormat(std::string_view name) {
  for (const auto format :
       {NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kBF16, NumberFormat::kQ8,
        NumberFormat::kQ4, NumberFormat::kKivi4, NumberFormat::kKivi2}) {
    if (Name(format) == name) {
      return format;
    }
  }
  return std::nullopt;
}

PageLayout::PageLayout(KvFormat format, const CacheGeometry& geometry)
    : format_(format),
      kv_heads_(geometry.kv_heads),
      head_dim_(geometry.head_dim),
      half_key_bytes_(HalfKeyBytes(format.keys, geometry.head_dim)),
      head_stride_(2 * half_key_bytes_ + ValueBytes(format.values, geometry.head_dim)) {
  if (IsGrouped(format) && head_dim_ % kGroupSlots != 0) {
    throw UserError(
        "format " + std::string(Name(IsGrouped(format.keys) ? format.keys : format.values)) +
        " needs a head size that is a multiple of 32; this model has " + std::to_string(head_dim_));
  }
}

void WriteSlot(const PageLayout& layout, std::byte* page, int head, int slot,
               std::span<const float> key, std::span<const float> value) {
  Check(!IsGrouped(layout.format()), "a grouped format is written a group at a time");
  WritePlainKey(layout, page, head, slot, key);
  WritePlainValue(layout, page, head, slot, value);
}

void CopySlot(const PageLayout& layout, const std::byte* from, int from_slot, std::byte* to,
              int to_slot, int head) {
  const auto dim = static_cast<std::size_t>(layout.head_dim());
  // Channels of a key lie kGroupSlots numbers apart.
  const auto copy_key = [&](auto number) {
    constexpr std::size_t kBytes = sizeof(number);
    const std::byte* source = from + layout.KeyOffset(head, from_slot) +
                              kBytes * static_cast<std::size_t>(from_slot % kGroupSlots);
    std::byte* target = to + layout.KeyOffset(head, to_slot) +
                        kBytes * static_cast<std::size_t>(to_slot % kGroupSlots);
    for (std::size_t c = 0; c < dim; ++c) {
      std::memcpy(target, source, kBytes);
      source += kBytes * kGroupSlots;
      target += kBytes * kGroupSlots;
    }
  };
  if (NumberBytes(layout.format().keys) == sizeof(std::uint32_t)) {
    copy_key(std::uint32_t{});
  } else {
    copy_key(std::uint16_t{});
  }
  const std::size_t row = dim * NumberBytes(layout.format().values);
  std::memcpy(to + layout.ValueOffset(head) + row * static_cast<std::size_t>(to_slot),
              from + layout.ValueOffset(head) + row * static_cast<std::size_t>(from_slot), row);
}

void WriteGroup(const PageLayout& layout, std::byte* page, int head, int first_slot,
                std::span<const float> keys, std::span<const float> values) {
  Check(first_slot % kGroupSlots == 0, "a group starts at a half page");
  const auto dim = static_cast<std::size_t>(layout.head_dim());
  if (IsBlocked(layout.format().keys)) {
    WriteKeyBlocks(layout, page + layout.KeyOffset(head, first_slot), keys);
  } else if (IsGrouped(layout.format().keys)) {
    WriteKeyGroup(layout, page + layout.KeyOffset(head, first_slot), keys);
  }
  for (int s = 0; s < kGroupSlots; ++s) {
    const std::size_t row = static_cast<std::size_t>(s) * dim;
    if (!IsGrouped(layout.format().keys)) {
      WritePlainKey(layout, page, head, first_slot + s, keys.subspan(row, dim));
    }
    if (IsGrouped(layout.format().values)) {
      WriteValueGroups(layout, page + layout.ValueOffset(head), first_slot + s,
                       values.subspan(row, dim));
    } else {
      WritePlainValue(layout, page, head, first_slot + s, values.subspan(row, dim));
    }
  }
}

void ReadKey(const PageLayout& layout, const std::byte* page, int head, int slot,
             std::span<float> out) {
  const NumberFormat format = layout.format().keys;
  const std::byte* block = page + layout.KeyOffset(head, slot);
  for (int c = 0; c < layout.head_dim(); ++c) {
    float& number = out[static_cast<std::size_t>(c)];
    if (IsGrouped(format)) {
      number = Dequantize(format, block + KeyCodes(format, c),
                          block + KeyScaleOffset(layout, slot, c), slot % kGroupSlots);
    } else {
      number = LoadNumber(format, block + NumberBytes(format) * PlainKeyIndex(slot, c));
    }
  }
}

void ReadValue(const PageLayout& layout, const std::byte* page, int head, int slot,
               std::span<float> out) {
  const NumberFormat format = layout.format().values;
  const std::byte* block = page + layout.ValueOffset(head);
  for (int c = 0; c < layout.head_dim(); ++c) {
    float& number = out[static_cast<std::size_t>(c)];
    const int index = slot * layout.head_dim() + c;
    if (IsGrouped(format)) {
      number = Dequantize(format, block + CodeBytes(format, index - c % kGroupSlots),
                          block + ValueScaleOffset(layout, slot, c / kGroupSlots), c % kGroupSlots);
    } else {
      number = LoadNumber(format, block + NumberBytes(format) * static_cast<std::size_t>(index));
    }
  }
}

void ReadKeyHalf(const PageLayout& layout, const std::byte* page, int head, int slot,
                 std::span<float> out) {
  const auto dim = static_cast<std::size_t>(layout.head_dim());
  const std::byte* block = page + layout.KeyOffset(head, slot);
  if (layout.format().keys == NumberFormat::kF16) {
    ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t*>(block), out.data(),
                          static_cast<std::int64_t>(dim * kGroupSlots));
    return;
  }
  std::vector<float> key(dim);
  for (int s = 0; s < kGroupSlots; ++s) {
    ReadKey(layout, page, head, slot / kGroupSlots * kGroupSlots + s, key);
    for (std::size_t c = 0; c < dim; ++c) {
      out[c * kGroupSlots + static_cast<std::size_t>(s)] = key[c];
    }
  }
}

}  // namespace vericache
