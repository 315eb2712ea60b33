// KIVI's grouped formats against their definition (arXiv 2402.02750, equation 1).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "ggml.h"
#include "kvcache/format.h"
#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr double kHalfUnit = 0x1p-24;  // float32's relative rounding error

// One group as it was written and as it is read back.
struct Group {
  std::vector<float> written;
  std::vector<float> read;
};

// Checks every number of a group against the exact asymmetric quantization: at most half a step
// away, or as far as the 16-bit rounding of scale and minimum moved the ends of the range.
void CheckGroup(int bits, const Group& group) {
  const auto [low, high] = std::minmax_element(group.written.begin(), group.written.end());
  const double levels = (1 << bits) - 1;
  const double step = (static_cast<double>(*high) - *low) / levels;
  const double stored_scale =
      ggml_fp16_to_fp32(ggml_fp32_to_fp16((*high - *low) / static_cast<float>(levels)));
  const double stored_minimum = ggml_fp16_to_fp32(ggml_fp32_to_fp16(*low));
  const double ends = std::abs(stored_minimum - *low) + levels * std::max(0.0, step - stored_scale);
  const double float_error =
      4 * kHalfUnit * (std::abs(stored_minimum) + levels * stored_scale + std::abs(*high));
  for (std::size_t i = 0; i < group.written.size(); ++i) {
    const double error = std::abs(static_cast<double>(group.read[i]) - group.written[i]);
    RC_ASSERT(error <= std::max(stored_scale / 2, ends) + float_error);
    // What is read is a code between 0 and the highest, times the scale, plus the minimum.
    if (stored_scale > 0.0) {
      const double code = (group.read[i] - stored_minimum) / stored_scale;
      RC_ASSERT(code >= -0.01);
      RC_ASSERT(code <= levels + 0.01);
      const double slack = 0.01 + float_error / stored_scale;
      RC_ASSERT(std::abs(code - std::nearbyint(code)) <= slack);
    } else {
      RC_ASSERT(static_cast<double>(group.read[i]) == stored_minimum);
    }
  }
}

// A page of one head whose two halves are written from random rows.
struct WrittenPage {
  WrittenPage(KvFormat format, int dim, RandomData& random)
      : layout(format, {.layers = 1, .kv_heads = 1, .head_dim = dim}), page(layout.page_bytes()) {
    keys = random.WithOutliers(Size(kPageSlots * dim), dim, 7);
    values = random.WithOutliers(Size(kPageSlots * dim), dim, 11);
    // The second half first: neither may disturb the other.
    for (const int half : {kGroupSlots, 0}) {
      const std::size_t at = Size(half * dim);
      const std::size_t count = Size(kGroupSlots * dim);
      WriteGroup(layout, page.data(), 0, half, std::span(keys).subspan(at, count),
                 std::span(values).subspan(at, count));
    }
    read_keys.resize(keys.size());
    read_values.resize(values.size());
    for (int slot = 0; slot < kPageSlots; ++slot) {
      const std::size_t at = Size(slot * dim);
      ReadKey(layout, page.data(), 0, slot, std::span(read_keys).subspan(at, Size(dim)));
      ReadValue(layout, page.data(), 0, slot, std::span(read_values).subspan(at, Size(dim)));
    }
  }

  PageLayout layout;
  std::vector<std::byte> page;
  std::vector<float> keys, values, read_keys, read_values;
};

void CheckKeys(const WrittenPage& written, int bits) {
  const int dim = written.layout.head_dim();
  for (int half = 0; half < 2; ++half) {
    for (int c = 0; c < dim; ++c) {  // along the slots, per channel
      Group group;
      for (int s = 0; s < kGroupSlots; ++s) {
        const std::size_t at = Size((half * kGroupSlots + s) * dim + c);
        group.written.push_back(written.keys[at]);
        group.read.push_back(written.read_keys[at]);
      }
      CheckGroup(bits, group);
    }
  }
}

void CheckValues(const WrittenPage& written, int bits) {
  for (std::size_t at = 0; at < written.values.size(); at += kGroupSlots) {  // per token
    const auto first = static_cast<std::ptrdiff_t>(at);
    CheckGroup(bits,
               {{written.values.begin() + first, written.values.begin() + first + 32},
                {written.read_values.begin() + first, written.read_values.begin() + first + 32}});
  }
}

NumberFormat Kivi(int bits) { return bits == 4 ? NumberFormat::kKivi4 : NumberFormat::kKivi2; }

RC_GTEST_PROP(Kivi, EveryNumberIsWithinHalfAStep, (std::uint32_t seed)) {
  RandomData random(seed);
  const int key_bits = 2 + 2 * random.Below(2);
  const int value_bits = 2 + 2 * random.Below(2);
  const WrittenPage written({Kivi(key_bits), Kivi(value_bits)}, 32 * (1 + random.Below(4)), random);
  CheckKeys(written, key_bits);
  CheckValues(written, value_bits);
}

RC_GTEST_PROP(Kivi, GroupedKeysGoWithPlainValues, (std::uint32_t seed)) {
  RandomData random(seed);
  const int bits = 2 + 2 * random.Below(2);
  const WrittenPage written({Kivi(bits), NumberFormat::kF32}, 64, random);
  CheckKeys(written, bits);
  RC_ASSERT(written.read_values == written.values);
}

RC_GTEST_PROP(Kivi, PlainKeysGoWithGroupedValues, (std::uint32_t seed)) {
  RandomData random(seed);
  const int bits = 2 + 2 * random.Below(2);
  const WrittenPage written({NumberFormat::kF32, Kivi(bits)}, 96, random);
  RC_ASSERT(written.read_keys == written.keys);
  CheckValues(written, bits);
}

class ConstantGroup : public ::testing::TestWithParam<NumberFormat> {};

TEST_P(ConstantGroup, IsItsNumberInHalfPrecision) {
  const PageLayout layout({GetParam(), GetParam()}, {.layers = 1, .kv_heads = 1, .head_dim = 32});
  for (const float number : {0.0F, 1.5F, -3.14159F, 1e-6F, 300.7F}) {
    std::vector<std::byte> page(layout.page_bytes());
    const std::vector<float> rows(kGroupSlots * 32, number);
    WriteGroup(layout, page.data(), 0, 0, rows, rows);
    std::vector<float> out(32);
    for (int slot = 0; slot < kGroupSlots; ++slot) {
      ReadKey(layout, page.data(), 0, slot, out);
      EXPECT_EQ(out, std::vector<float>(32, ggml_fp16_to_fp32(ggml_fp32_to_fp16(number))));
      ReadValue(layout, page.data(), 0, slot, out);
      EXPECT_EQ(out, std::vector<float>(32, ggml_fp16_to_fp32(ggml_fp32_to_fp16(number))));
    }
  }
}

TEST_P(ConstantGroup, OverwritesWhatWasThereBefore) {
  const PageLayout layout({GetParam(), GetParam()}, {.layers = 1, .kv_heads = 1, .head_dim = 32});
  RandomData random(1);
  std::vector<std::byte> used(layout.page_bytes());
  WriteGroup(layout, used.data(), 0, 32, random.Floats(1024), random.Floats(1024));
  std::vector<std::byte> fresh(layout.page_bytes());
  const std::vector<float> rows = random.Floats(1024);
  WriteGroup(layout, used.data(), 0, 32, rows, rows);
  WriteGroup(layout, fresh.data(), 0, 32, rows, rows);
  EXPECT_EQ(used, fresh);
}

INSTANTIATE_TEST_SUITE_P(Formats, ConstantGroup,
                         ::testing::Values(NumberFormat::kKivi4, NumberFormat::kKivi2),
                         [](const auto& each) { return std::string(Name(each.param)); });

TEST(Kivi, KeepsTheEndsOfARangeThatHalfPrecisionHolds) {
  const PageLayout layout({NumberFormat::kKivi2, NumberFormat::kKivi2},
                          {.layers = 1, .kv_heads = 1, .head_dim = 32});
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<float> rows(1024);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>((i + i / 32) % 4) - 1.0F;  // -1, 0, 1, 2 in rows and columns
  }
  WriteGroup(layout, page.data(), 0, 0, rows, rows);
  std::vector<float> out(32);
  for (int slot = 0; slot < kGroupSlots; ++slot) {
    const auto first = rows.begin() + slot * 32;
    ReadKey(layout, page.data(), 0, slot, out);
    EXPECT_EQ(out, std::vector<float>(first, first + 32));
    ReadValue(layout, page.data(), 0, slot, out);
    EXPECT_EQ(out, std::vector<float>(first, first + 32));
  }
}

}  // namespace
}  // namespace vericache
