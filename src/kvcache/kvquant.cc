#include "kvcache/kvquant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/size.h"
#include "ggml.h"
#include "kvcache/quantize.h"

namespace vericache {
namespace {

constexpr float kUnit = 1.0F / 127.0F;  // a level's byte is so many of them from 128

float FromHalf(std::uint16_t bits) { return ggml_fp16_to_fp32(bits); }

std::uint16_t LoadHalf(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}

void StoreHalf(std::uint16_t bits, std::byte* at) { std::memcpy(at, &bits, sizeof(bits)); }

float Number(const KvQuantLevels& levels, std::uint8_t code, float center, float half) {
  return center + (static_cast<float>(levels[code]) - 128.0F) * (half * kUnit);
}

// The codes of the levels nearest to numbers.
class LevelTable {
 public:
  LevelTable(int bits, const KvQuantLevels& levels) {
    std::size_t code = 0;
    const std::size_t last = (std::size_t{1} << static_cast<unsigned>(bits)) - 1;
    for (int doubled = 0; doubled < kSteps; ++doubled) {
      while (code < last && doubled > levels[code] + levels[code + 1]) {
        ++code;
      }
      codes_[static_cast<std::size_t>(doubled)] = static_cast<std::uint8_t>(code);
    }
  }

  // A number between -1 and 1; beyond, the last level's.
  std::uint8_t Of(float number) const {
    // Thresholds lie halfway between adjacent bytes: twice a number is above the same ones as the
    // next whole number is.
    const float doubled = std::clamp(254.0F * number + 256.0F, 0.0F, kSteps - 1.0F);
    auto up = static_cast<std::size_t>(doubled);
    up += static_cast<float>(up) < doubled ? 1 : 0;
    return codes_[up];
  }

 private:
  static constexpr int kSteps = 512;  // twice a byte
  std::array<std::uint8_t, kSteps> codes_{};
};

float Over(float number, float center, float half) {
  return half > 0.0F ? (number - center) / half : 0.0F;
}

// The indices of the `count` largest distances, ascending; among equals the earlier ones.
std::vector<std::uint16_t> Farthest(const std::vector<float>& distances, int count) {
  std::vector<std::uint16_t> indices;
  if (count == 0) {
    return indices;
  }
  std::vector<float> sorted = distances;
  std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater());
  const float least = sorted[Size(count - 1)];
  const auto above = std::ranges::count_if(distances, [least](float x) { return x > least; });
  auto as_far = count - static_cast<int>(above);
  for (std::size_t i = 0; i < distances.size(); ++i) {
    if (distances[i] > least || (distances[i] == least && as_far-- > 0)) {
      indices.push_back(static_cast<std::uint16_t>(i));
    }
  }
  return indices;
}

// `numbers` are those of the half page, by index.
void WriteOutliers(std::span<const std::uint16_t> indices, std::span<const float> numbers,
                   std::byte* to) {
  std::byte* number = to + indices.size() * sizeof(std::uint16_t);
  for (const std::uint16_t index : indices) {
    StoreHalf(index, to);
    StoreHalf(ggml_fp32_to_fp16(numbers[index]), number);
    to += sizeof(std::uint16_t);
    number += sizeof(std::uint16_t);
  }
}

// Calls f(index, number) for each.
template <class F>
void ForEachOutlier(const std::byte* from, int places, const F& f) {
  for (int i = 0; i < places; ++i) {
    const std::uint16_t index = LoadHalf(from + Size(i) * sizeof(index));
    f(static_cast<int>(index), FromHalf(LoadHalf(from + Size(places + i) * sizeof(index))));
  }
}

int PositionAt(const KvQuantKeyPlacesOf& places, const std::byte* block, int slot) {
  const std::uint16_t low = LoadHalf(block + places.low_positions + Size(slot) * sizeof(low));
  return low + (static_cast<int>(block[places.high_positions + Size(slot)]) << 16);
}

struct Range {
  float center;
  float half;
};

Range KeyRange(const KvQuant& kvquant, std::size_t channel) {
  return kvquant.key_centers.empty()
             ? Range{0.0F, kNormalCut}
             : Range{kvquant.key_centers[channel], kvquant.key_halves[channel]};
}

}  // namespace

KvQuantKeyPlacesOf KvQuantKeyPlaces(KvFormat format, int head_dim) {
  const std::size_t low = CodeBytes(format.keys, head_dim * kGroupSlots);
  const std::size_t high = low + kGroupSlots * sizeof(std::uint16_t);
  const std::size_t outliers = high + kGroupSlots;
  return {.low_positions = low,
          .high_positions = high,
          .outliers = outliers,
          .bytes = outliers + Size(OutlierPlaces(format.outliers, head_dim)) * kOutlierBytes};
}

KvQuantValuePlacesOf KvQuantValuePlaces(KvFormat format, int head_dim) {
  const std::size_t ranges = CodeBytes(format.values, head_dim * kPageSlots);
  const std::size_t outliers = ranges + kPageSlots * 2 * sizeof(std::uint16_t);
  const std::size_t half = Size(OutlierPlaces(format.outliers, head_dim)) * kOutlierBytes;
  return {.ranges = ranges, .outliers = {outliers, outliers + half}, .bytes = outliers + 2 * half};
}

void WriteKvQuantKeys(const PageLayout& layout, std::byte* block, int head,
                      std::span<const float> keys, std::span<const int> positions) {
  const NumberFormat format = layout.format().keys;
  const KvQuant& kvquant = layout.kvquant();
  const KvQuantLevels& levels = kvquant.key_levels_of(format);
  const KvQuantKeyPlacesOf places = KvQuantKeyPlaces(layout.format(), layout.head_dim());
  const std::size_t dim = Size(layout.head_dim());
  const int bits = Traits(format).bits;
  const LevelTable nearest(bits, levels);
  std::memset(block, 0, places.outliers);
  std::vector<float> numbers(keys.size());  // [channel][slot]
  std::vector<float> row(dim);
  for (std::size_t s = 0; s < kGroupSlots; ++s) {
    std::ranges::copy(keys.subspan(s * dim, dim), row.begin());
    if (kvquant.rope) {
      const int position = positions[s];
      Check(position < kvquant.rope->positions() && position < kKvQuantPositions, "positions");
      kvquant.rope->TurnBack(row, position);
      StoreHalf(static_cast<std::uint16_t>(position),
                block + places.low_positions + s * sizeof(std::uint16_t));
      block[places.high_positions + s] = static_cast<std::byte>(position >> 16);
    }
    for (std::size_t c = 0; c < dim; ++c) {
      numbers[c * kGroupSlots + s] = Sane(row[c]);
    }
  }
  std::vector<float> errors(numbers.size());
  for (std::size_t c = 0; c < dim; ++c) {
    const auto [center, half] = KeyRange(kvquant, Size(head) * dim + c);
    std::byte* const codes = block + CodeBytes(format, static_cast<int>(c) * kGroupSlots);
    for (std::size_t s = 0; s < kGroupSlots; ++s) {
      const std::size_t at = c * kGroupSlots + s;
      const std::uint8_t code = nearest.Of(Over(numbers[at], center, half));
      PutCode(bits, codes, static_cast<int>(s), code);
      errors[at] = std::abs(numbers[at] - Number(levels, code, center, half));
    }
  }
  const int count = OutlierPlaces(layout.format().outliers, layout.head_dim());
  WriteOutliers(Farthest(errors, count), numbers, block + places.outliers);
}

void ReadKvQuantKey(const PageLayout& layout, const std::byte* block, int head, int slot,
                    std::span<float> out) {
  const NumberFormat format = layout.format().keys;
  const KvQuant& kvquant = layout.kvquant();
  const KvQuantLevels& levels = kvquant.key_levels_of(format);
  const KvQuantKeyPlacesOf places = KvQuantKeyPlaces(layout.format(), layout.head_dim());
  const int in_half = slot % kGroupSlots;
  for (int c = 0; c < layout.head_dim(); ++c) {
    const auto [center, half] = KeyRange(kvquant, Size(head * layout.head_dim() + c));
    const std::uint8_t code =
        GetCode(Traits(format).bits, block + CodeBytes(format, c * kGroupSlots), in_half);
    out[Size(c)] = Number(levels, code, center, half);
  }
  ForEachOutlier(block + places.outliers,
                 OutlierPlaces(layout.format().outliers, layout.head_dim()),
                 [&](int index, float number) {
                   if (index % kGroupSlots == in_half) {
                     out[Size(index / kGroupSlots)] = number;
                   }
                 });
  if (kvquant.rope) {
    kvquant.rope->Turn(out, PositionAt(places, block, in_half));
  }
}

NormalizedValues NormalizeValues(std::span<const float> values, int head_dim, float outliers) {
  const std::size_t dim = Size(head_dim);
  NormalizedValues result{.numbers = std::vector<float>(values.size()),
                          .apart = std::vector<bool>(values.size())};
  std::vector<float>& numbers = result.numbers;
  std::ranges::transform(values, numbers.begin(), Sane);
  std::vector<float> distances(values.size());
  for (std::size_t first = 0; first < numbers.size(); first += dim) {
    const auto row = std::span(numbers).subspan(first, dim);
    const float mean = std::accumulate(row.begin(), row.end(), 0.0F) / static_cast<float>(dim);
    float square = 0.0F;
    for (const float x : row) {
      square += (x - mean) * (x - mean);
    }
    const float deviation = std::sqrt(square / static_cast<float>(dim));
    for (std::size_t c = 0; c < dim; ++c) {
      distances[first + c] = Over(std::abs(row[c] - mean), 0.0F, deviation);
    }
  }
  for (const std::uint16_t index : Farthest(distances, OutlierPlaces(outliers, head_dim))) {
    result.apart[index] = true;
  }
  for (std::size_t s = 0; s < kGroupSlots; ++s) {
    float low = kLargestHalf;
    float high = -kLargestHalf;
    for (std::size_t i = s * dim; i < (s + 1) * dim; ++i) {
      if (!result.apart[i]) {
        low = std::min(low, numbers[i]);
        high = std::max(high, numbers[i]);
      }
    }
    const bool any = low <= high;
    result.centers[s] = ggml_fp32_to_fp16(any ? low + (high - low) / 2.0F : 0.0F);
    result.halves[s] = ggml_fp32_to_fp16(any ? std::min((high - low) / 2.0F, kLargestHalf) : 0.0F);
    const float center = FromHalf(result.centers[s]);
    const float half = FromHalf(result.halves[s]);
    for (std::size_t i = s * dim; i < (s + 1) * dim; ++i) {
      numbers[i] = Over(numbers[i], center, half);
    }
  }
  return result;
}

void WriteKvQuantValues(const PageLayout& layout, std::byte* block, int first_slot,
                        std::span<const float> values) {
  const NumberFormat format = layout.format().values;
  const int dim = layout.head_dim();
  const int bits = Traits(format).bits;
  const LevelTable nearest(bits, layout.kvquant().value_levels_of(format));
  const KvQuantValuePlacesOf places = KvQuantValuePlaces(layout.format(), dim);
  const NormalizedValues normalized = NormalizeValues(values, dim, layout.format().outliers);
  std::byte* codes = block + CodeBytes(format, first_slot * dim);
  std::memset(codes, 0, CodeBytes(format, kGroupSlots * dim));
  for (int i = 0; i < kGroupSlots * dim; ++i) {
    PutCode(bits, codes + CodeBytes(format, i / kGroupSlots * kGroupSlots), i % kGroupSlots,
            nearest.Of(normalized.numbers[Size(i)]));
  }
  std::byte* range = block + places.ranges + Size(first_slot) * 2 * sizeof(std::uint16_t);
  for (std::size_t s = 0; s < kGroupSlots; ++s) {
    StoreHalf(normalized.centers[s], range);
    StoreHalf(normalized.halves[s], range + sizeof(std::uint16_t));
    range += 2 * sizeof(std::uint16_t);
  }
  std::vector<std::uint16_t> apart;
  std::vector<float> numbers(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    numbers[i] = Sane(values[i]);
    if (normalized.apart[i]) {
      apart.push_back(static_cast<std::uint16_t>(i));
    }
  }
  WriteOutliers(apart, numbers, block + places.outliers[first_slot < kGroupSlots ? 0 : 1]);
}

void ReadKvQuantValue(const PageLayout& layout, const std::byte* block, int slot,
                      std::span<float> out) {
  const NumberFormat format = layout.format().values;
  const KvQuantLevels& levels = layout.kvquant().value_levels_of(format);
  const int dim = layout.head_dim();
  const KvQuantValuePlacesOf places = KvQuantValuePlaces(layout.format(), dim);
  const std::byte* range = block + places.ranges + Size(slot) * 2 * sizeof(std::uint16_t);
  const float center = FromHalf(LoadHalf(range));
  const float half = FromHalf(LoadHalf(range + sizeof(std::uint16_t)));
  for (int c = 0; c < dim; ++c) {
    const std::byte* codes = block + CodeBytes(format, slot * dim + c / kGroupSlots * kGroupSlots);
    out[Size(c)] =
        Number(levels, GetCode(Traits(format).bits, codes, c % kGroupSlots), center, half);
  }
  ForEachOutlier(block + places.outliers[slot < kGroupSlots ? 0 : 1],
                 OutlierPlaces(layout.format().outliers, dim), [&](int index, float number) {
                   if (index / dim == slot % kGroupSlots) {
                     out[Size(index % dim)] = number;
                   }
                 });
}

void SetKeyRanges(KvQuant& kvquant, int kv_heads, int head_dim, float outliers,
                  std::span<const float> keys, std::span<const int> positions) {
  const std::size_t dim = Size(head_dim);
  const std::size_t rows = keys.size() / dim / Size(kv_heads);
  const auto cut = static_cast<std::ptrdiff_t>(outliers / 2.0F * static_cast<float>(rows));
  kvquant.key_centers.assign(Size(kv_heads) * dim, 0.0F);
  kvquant.key_halves.assign(Size(kv_heads) * dim, 0.0F);
  std::vector<float> numbers(rows * dim);  // of a head, [channel][row]
  std::vector<float> row(dim);
  for (std::size_t head = 0; head < Size(kv_heads); ++head) {
    for (std::size_t r = 0; r < rows; ++r) {
      std::ranges::copy(keys.subspan((head * rows + r) * dim, dim), row.begin());
      if (kvquant.rope) {
        kvquant.rope->TurnBack(row, positions[head * rows + r]);
      }
      for (std::size_t c = 0; c < dim; ++c) {
        numbers[c * rows + r] = Sane(row[c]);
      }
    }
    for (std::size_t c = 0; c < dim; ++c) {
      const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(c * rows);
      const auto end = begin + static_cast<std::ptrdiff_t>(rows);
      std::nth_element(begin, begin + cut, end);
      const float low = begin[cut];
      std::nth_element(begin, end - 1 - cut, end);
      const float high = end[-1 - cut];
      kvquant.key_centers[head * dim + c] = (low + high) / 2.0F;
      kvquant.key_halves[head * dim + c] = (high - low) / 2.0F;
    }
  }
}

}  // namespace vericache
