#include "kvcache/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "ggml.h"
#include "kvcache/kvquant.h"
#include "kvcache/quantize.h"
#include "kvcache/rotation.h"

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

// Where the scale and the minimum that a number belongs to lie in a key block or a value block.
struct ScalePlace {
  std::size_t scale;
  std::size_t minimum;
};

ScalePlace KeyScalePlace(const PageLayout& layout, int slot, int channel) {
  const NumberFormat format = layout.format().keys;
  const std::size_t scales = CodeBytes(format, layout.head_dim() * kGroupSlots);
  const auto row = static_cast<std::size_t>(slot % kGroupSlots);
  const std::size_t block = static_cast<std::size_t>(channel / kGroupSlots * kGroupSlots) + row;
  constexpr std::size_t kHalf = sizeof(std::uint16_t);
  switch (Traits(format).grouping) {
    case Grouping::kGroups: {
      const std::size_t at = scales + 2 * kHalf * static_cast<std::size_t>(channel);
      return {at, at + kHalf};
    }
    case Grouping::kTokens: {
      const std::size_t at = scales + kHalf * block;
      return {at, at + kHalf * static_cast<std::size_t>(layout.head_dim())};
    }
    case Grouping::kRows:
      return {scales + kHalf * row, 0};
    default:
      return {scales + kHalf * block, 0};
  }
}

ScalePlace ValueScalePlace(const PageLayout& layout, int slot, int channel) {
  const NumberFormat format = layout.format().values;
  const int together = ScaledTogether(format, layout.head_dim());
  const int index = slot * (layout.head_dim() / together) + channel / together;
  const std::size_t at = CodeBytes(format, layout.head_dim() * kPageSlots) +
                         static_cast<std::size_t>(index) * ScaleBytes(format);
  return {at, at + sizeof(std::uint16_t)};
}

void StoreScale(NumberFormat format, CodeScale scale, ScalePlace place, std::byte* block) {
  std::memcpy(block + place.scale, &scale.scale, sizeof(scale.scale));
  if (ScaleBytes(format) == sizeof(CodeScale)) {
    std::memcpy(block + place.minimum, &scale.minimum, sizeof(scale.minimum));
  }
}

CodeScale LoadScale(NumberFormat format, const std::byte* block, ScalePlace place) {
  CodeScale scale;
  std::memcpy(&scale.scale, block + place.scale, sizeof(scale.scale));
  if (ScaleBytes(format) == sizeof(CodeScale)) {
    std::memcpy(&scale.minimum, block + place.minimum, sizeof(scale.minimum));
  }
  return scale;
}

// The codes of channel `c` in a half page of keys.
std::size_t KeyCodes(NumberFormat format, int c) { return CodeBytes(format, c * kGroupSlots); }

// The codes of the group of channels that `c` is of, of a value.
std::size_t ValueCodes(const PageLayout& layout, int slot, int c) {
  return CodeBytes(layout.format().values,
                   slot * layout.head_dim() + c / kGroupSlots * kGroupSlots);
}

void WriteGroupedKeys(const PageLayout& layout, std::byte* block, std::span<const float> keys) {
  const NumberFormat format = layout.format().keys;
  const int dim = layout.head_dim();
  std::memset(block, 0, CodeBytes(format, dim * kGroupSlots));
  if (Traits(format).grouping == Grouping::kGroups) {
    for (int c = 0; c < dim; ++c) {
      std::array<float, kGroupSlots> numbers{};
      std::array<std::uint8_t, kGroupSlots> codes{};
      for (int s = 0; s < kGroupSlots; ++s) {
        numbers[static_cast<std::size_t>(s)] = keys[static_cast<std::size_t>(s * dim + c)];
      }
      StoreScale(format, Quantize(format, numbers, codes), KeyScalePlace(layout, 0, c), block);
      for (int s = 0; s < kGroupSlots; ++s) {
        PutCode(Traits(format).bits, block + KeyCodes(format, c), s,
                codes[static_cast<std::size_t>(s)]);
      }
    }
    return;
  }
  const int together = ScaledTogether(format, dim);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(together));
  for (int s = 0; s < kGroupSlots; ++s) {
    for (int first = 0; first < dim; first += together) {
      const auto numbers = keys.subspan(static_cast<std::size_t>(s * dim + first), codes.size());
      StoreScale(format, Quantize(format, numbers, codes), KeyScalePlace(layout, s, first), block);
      for (int i = 0; i < together; ++i) {
        PutCode(Traits(format).bits, block + KeyCodes(format, first + i), s,
                codes[static_cast<std::size_t>(i)]);
      }
    }
  }
}

void WriteGroupedValue(const PageLayout& layout, std::byte* block, int slot,
                       std::span<const float> value) {
  const NumberFormat format = layout.format().values;
  const int dim = layout.head_dim();
  std::memset(block + ValueCodes(layout, slot, 0), 0, CodeBytes(format, dim));
  const int together = ScaledTogether(format, dim);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(together));
  for (int first = 0; first < dim; first += together) {
    const auto numbers = value.subspan(static_cast<std::size_t>(first), codes.size());
    StoreScale(format, Quantize(format, numbers, codes), ValueScalePlace(layout, slot, first),
               block);
    for (int i = 0; i < together; ++i) {
      PutCode(Traits(format).bits, block + ValueCodes(layout, slot, first + i),
              (first + i) % kGroupSlots, codes[static_cast<std::size_t>(i)]);
    }
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

// Of codes and scales, or of plain numbers.
std::size_t HalfPageBytes(NumberFormat format, int head_dim) {
  const int count = kGroupSlots * head_dim;
  if (!IsGrouped(format)) {
    return static_cast<std::size_t>(count) * NumberBytes(format);
  }
  const int scales = count / ScaledTogether(format, head_dim);
  return CodeBytes(format, count) + static_cast<std::size_t>(scales) * ScaleBytes(format);
}

std::size_t HalfKeyBytes(KvFormat format, int head_dim) {
  return IsKvQuant(format.keys) ? KvQuantKeyPlaces(format, head_dim).bytes
                                : HalfPageBytes(format.keys, head_dim);
}

std::size_t ValueBytes(KvFormat format, int head_dim) {
  return IsKvQuant(format.values) ? KvQuantValuePlaces(format, head_dim).bytes
                                  : 2 * HalfPageBytes(format.values, head_dim);
}

// The rows of a group as a format holds them.
std::vector<float> Rotated(std::span<const float> rows, std::size_t dim) {
  std::vector<float> rotated(rows.begin(), rows.end());
  for (std::size_t first = 0; first < rotated.size(); first += dim) {
    Rotate(std::span(rotated).subspan(first, dim));
  }
  return rotated;
}

}  // namespace

PageLayout::PageLayout(KvFormat format, const CacheGeometry& geometry,
                       std::shared_ptr<const KvQuant> kvquant)
    : format_(format),
      kv_heads_(geometry.kv_heads),
      head_dim_(geometry.head_dim),
      half_key_bytes_(HalfKeyBytes(format, geometry.head_dim)),
      head_stride_(2 * half_key_bytes_ + ValueBytes(format, geometry.head_dim)),
      kvquant_(std::move(kvquant)) {
  if (IsGrouped(format) && head_dim_ % kGroupSlots != 0) {
    throw UserError(
        "format " + std::string(Name(IsGrouped(format.keys) ? format.keys : format.values)) +
        " needs a head size that is a multiple of 32; this model has " + std::to_string(head_dim_));
  }
  if (IsKvQuant(format) && !kvquant_) {
    static const auto kAsMade = std::make_shared<const KvQuant>();
    kvquant_ = kAsMade;
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
                std::span<const float> keys, std::span<const float> values,
                std::span<const int> positions) {
  Check(first_slot % kGroupSlots == 0, "a group starts at a half page");
  const auto dim = static_cast<std::size_t>(layout.head_dim());
  std::vector<float> rotated_keys;
  std::vector<float> rotated_values;
  if (layout.rotated_keys()) {
    keys = rotated_keys = Rotated(keys, dim);
  }
  if (layout.rotated_values()) {
    values = rotated_values = Rotated(values, dim);
  }
  if (IsKvQuant(layout.format().keys)) {
    WriteKvQuantKeys(layout, page + layout.KeyOffset(head, first_slot), head, keys, positions);
  } else if (IsGrouped(layout.format().keys)) {
    WriteGroupedKeys(layout, page + layout.KeyOffset(head, first_slot), keys);
  }
  if (IsKvQuant(layout.format().values)) {
    WriteKvQuantValues(layout, page + layout.ValueOffset(head), first_slot, values);
  }
  for (int s = 0; s < kGroupSlots; ++s) {
    const std::size_t row = static_cast<std::size_t>(s) * dim;
    if (!IsGrouped(layout.format().keys)) {
      WritePlainKey(layout, page, head, first_slot + s, keys.subspan(row, dim));
    }
    if (IsKvQuant(layout.format().values)) {
      continue;
    }
    if (IsGrouped(layout.format().values)) {
      WriteGroupedValue(layout, page + layout.ValueOffset(head), first_slot + s,
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
  if (IsKvQuant(format)) {
    return ReadKvQuantKey(layout, block, head, slot, out);
  }
  for (int c = 0; c < layout.head_dim(); ++c) {
    float& number = out[static_cast<std::size_t>(c)];
    if (IsGrouped(format)) {
      number = Dequantize(
          format, GetCode(Traits(format).bits, block + KeyCodes(format, c), slot % kGroupSlots),
          LoadScale(format, block, KeyScalePlace(layout, slot, c)));
    } else {
      number = LoadNumber(format, block + NumberBytes(format) * PlainKeyIndex(slot, c));
    }
  }
}

void ReadValue(const PageLayout& layout, const std::byte* page, int head, int slot,
               std::span<float> out) {
  const NumberFormat format = layout.format().values;
  const std::byte* block = page + layout.ValueOffset(head);
  if (IsKvQuant(format)) {
    return ReadKvQuantValue(layout, block, slot, out);
  }
  for (int c = 0; c < layout.head_dim(); ++c) {
    float& number = out[static_cast<std::size_t>(c)];
    if (IsGrouped(format)) {
      number = Dequantize(
          format,
          GetCode(Traits(format).bits, block + ValueCodes(layout, slot, c), c % kGroupSlots),
          LoadScale(format, block, ValueScalePlace(layout, slot, c)));
    } else {
      const auto index = static_cast<std::size_t>(slot * layout.head_dim() + c);
      number = LoadNumber(format, block + NumberBytes(format) * index);
    }
  }
}

}  // namespace vericache
