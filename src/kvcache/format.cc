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
  if (bits == 4) {
    codes[i % 16] |= static_cast<std::byte>(code << (i < 16 ? 0 : 4));
  } else {
    codes[i / 4] |= static_cast<std::byte>(code << (2 * (i % 4)));
  }
}

unsigned GetCode(int bits, const std::byte* codes, int i) {
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

// One group's dequantized number, with the same rounding as a fused multiply-add in a kernel.
float Dequantize(int bits, const std::byte* codes, const std::byte* scale_at, int i) {
  GroupScale stored{};
  std::memcpy(&stored, scale_at, sizeof(stored));
  return std::fma(static_cast<float>(GetCode(bits, codes, i)), ggml_fp16_to_fp32(stored.scale),
                  ggml_fp16_to_fp32(stored.minimum));
}

// Scales of grouped keys follow the codes of a half page, one per channel; scales of grouped values
// follow the codes of the page, [slot][head_dim / 32].
std::size_t KeyScaleOffset(const PageLayout& layout, int channel) {
  return CodeBytes(layout.format().keys, layout.head_dim() * kGroupSlots) +
         static_cast<std::size_t>(channel) * sizeof(GroupScale);
}

std::size_t ValueScaleOffset(const PageLayout& layout, int slot, int group) {
  const int groups = layout.head_dim() / kGroupSlots;
  return CodeBytes(layout.format().values, layout.head_dim() * kPageSlots) +
         static_cast<std::size_t>(slot * groups + group) * sizeof(GroupScale);
}

void WriteKeyGroup(const PageLayout& layout, std::byte* block, std::span<const float> keys) {
  const int bits = CodeBits(layout.format().keys);
  for (int c = 0; c < layout.head_dim(); ++c) {
    std::array<float, kGroupSlots> numbers{};
    for (int s = 0; s < kGroupSlots; ++s) {
      numbers[static_cast<std::size_t>(s)] =
          keys[static_cast<std::size_t>(s * layout.head_dim() + c)];
    }
    const GroupScale scale =
        QuantizeGroup(bits, numbers, block + static_cast<std::ptrdiff_t>(c * 4 * bits));
    std::memcpy(block + KeyScaleOffset(layout, c), &scale, sizeof(scale));
  }
}

void WriteValueGroups(const PageLayout& layout, std::byte* block, int slot,
                      std::span<const float> value) {
  const int bits = CodeBits(layout.format().values);
  for (int g = 0; g < layout.head_dim() / kGroupSlots; ++g) {
    std::array<float, kGroupSlots> numbers{};
    std::copy_n(value.begin() + static_cast<std::ptrdiff_t>(g * kGroupSlots), kGroupSlots,
                numbers.begin());
    const std::size_t at =
        CodeBytes(layout.format().values, slot * layout.head_dim() + g * kGroupSlots);
    const GroupScale scale = QuantizeGroup(bits, numbers, block + at);
    std::memcpy(block + ValueScaleOffset(layout, slot, g), &scale, sizeof(scale));
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
             ? CodeBytes(format, count) + static_cast<std::size_t>(head_dim) * sizeof(GroupScale)
             : static_cast<std::size_t>(count) * NumberBytes(format);
}

std::size_t ValueBytes(NumberFormat format, int head_dim) {
  const int count = kPageSlots * head_dim;
  return IsGrouped(format) ? CodeBytes(format, count) +
                                 static_cast<std::size_t>(count / kGroupSlots) * sizeof(GroupScale)
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
    case NumberFormat::kKivi4:
      return "kivi4";
    case NumberFormat::kKivi2:
      return "kivi2";
  }
  return "?";
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

void WriteGroup(const PageLayout& layout, std::byte* page, int head, int first_slot,
                std::span<const float> keys, std::span<const float> values) {
  Check(first_slot % kGroupSlots == 0, "a group starts at a half page");
  const auto dim = static_cast<std::size_t>(layout.head_dim());
  if (IsGrouped(layout.format().keys)) {
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
      const int bits = CodeBits(format);
      number = Dequantize(bits, block + static_cast<std::ptrdiff_t>(c * 4 * bits),
                          block + KeyScaleOffset(layout, c), slot % kGroupSlots);
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
      number = Dequantize(CodeBits(format), block + CodeBytes(format, index - c % kGroupSlots),
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
