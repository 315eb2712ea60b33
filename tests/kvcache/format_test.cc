#include "kvcache/format.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "ggml.h"
#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr NumberFormat kPlain[] = {NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kBF16};

// What ggml makes of a number in a plain format; beyond f16's range the largest number of it.
float Rounded(NumberFormat format, float number) {
  switch (format) {
    case NumberFormat::kF16:
      return ggml_fp16_to_fp32(ggml_fp32_to_fp16(std::clamp(number, -65504.0F, 65504.0F)));
    case NumberFormat::kBF16:
      return ggml_bf16_to_fp32(ggml_fp32_to_bf16(number));
    default:
      return number;
  }
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

CacheGeometry Geometry(int kv_heads, int head_dim) {
  return {.layers = 1, .kv_heads = kv_heads, .head_dim = head_dim};
}

// Random finite numbers over float32's whole range, and the corner cases.
std::vector<float> AnyFloats(RandomData& random, std::size_t count) {
  const float corners[] = {0.0F,
                           -0.0F,
                           65504.0F,
                           65520.0F,
                           -1e30F,
                           5.96e-8F,
                           1e-40F,
                           std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::max(),
                           1.0F + 1.0F / 2048.0F,
                           1.0F + 1.0F / 256.0F,
                           1.0F + 3.0F / 256.0F};
  std::vector<float> floats(count);
  for (float& number : floats) {
    number = random.Below(4) == 0 ? corners[random.Below(static_cast<int>(std::size(corners)))]
                                  : std::ldexp(random.Normal(), random.Below(60) - 30);
  }
  return floats;
}

TEST(FormatName, IsTheOneOfTheCommandLine) {
  EXPECT_EQ(Name(NumberFormat::kF32), "f32");
  EXPECT_EQ(Name(NumberFormat::kBF16), "bf16");
  EXPECT_EQ(Name(NumberFormat::kQ4R), "q4r");
  EXPECT_EQ(Name(NumberFormat::kKivi2), "kivi2");
  EXPECT_EQ(Name(NumberFormat::kTurbo3), "turboquant3");
  for (std::size_t i = 0; i < kNumberFormats.size(); ++i) {
    const NumberFormat format = kNumberFormats[i].format;
    EXPECT_EQ(static_cast<std::size_t>(format), i);
    EXPECT_EQ(ParseNumberFormat(Name(format)), format);
  }
  EXPECT_EQ(ParseNumberFormat("q5"), std::nullopt);
}

// Bytes of 32 rows of `dim` numbers: the codes that a format's name says, and half precision
// numbers for each 32 of them, two of KIVI and RotateKV, one of q8 and q4; of TurboQuant one for
// each row. Of KVQuant four bytes for each row's range of values, or three for each key's position,
// and four for one number in a hundred.
std::size_t DocumentedBytes(NumberFormat format, int dim, bool keys) {
  const std::string name(Name(format));
  const std::size_t codes = 32 * Size(dim * Traits(format).bits) / 8;
  if (!IsGrouped(format)) {
    return codes;
  }
  EXPECT_EQ(std::string(1, name[name.find_first_of("2348")]), std::to_string(Traits(format).bits));
  if (name.starts_with("turboquant")) {
    return codes + 32 * 2;
  }
  if (name.starts_with("kvquant")) {
    return codes + Size(32 * (keys ? 3 : 4)) + Size(32 * dim / 100 * 4);
  }
  return codes + Size(dim) * (name.starts_with("q") ? 2 : 4);
}

TEST(PageLayout, TakesTheDocumentedBytes) {
  for (const FormatTraits& keys : kNumberFormats) {
    for (const FormatTraits& values : kNumberFormats) {
      for (const int dim : {32, 64, 96, 128, 256}) {
        const PageLayout layout({keys.format, values.format}, Geometry(3, dim));
        EXPECT_EQ(layout.page_bytes(), Size(3 * 2) * (DocumentedBytes(keys.format, dim, true) +
                                                      DocumentedBytes(values.format, dim, false)))
            << keys.name << ' ' << values.name << ' ' << dim;
      }
    }
  }
}

TEST(PageLayout, BlocksOfHeadsAndHalvesDoNotOverlap) {
  for (const KvFormat format : {KvFormat{NumberFormat::kF16, NumberFormat::kF16},
                                KvFormat{NumberFormat::kKivi4, NumberFormat::kKivi2}}) {
    const PageLayout layout(format, Geometry(2, 64));
    EXPECT_EQ(layout.KeyOffset(0, 0), 0U);
    EXPECT_EQ(layout.KeyOffset(0, 31), 0U);
    EXPECT_EQ(layout.KeyOffset(0, 32), layout.half_key_bytes());
    EXPECT_EQ(layout.ValueOffset(0), 2 * layout.half_key_bytes());
    EXPECT_EQ(layout.KeyOffset(1, 0), layout.page_bytes() / 2);
  }
}

TEST(PageLayout, RefusesAGroupedFormatWhoseGroupsDoNotFill) {
  for (const KvFormat format : {KvFormat{NumberFormat::kKivi4, NumberFormat::kKivi4},
                                KvFormat{NumberFormat::kF16, NumberFormat::kKivi2},
                                KvFormat{NumberFormat::kKivi2, NumberFormat::kF16}}) {
    try {
      const PageLayout layout(format, Geometry(1, 48));
      FAIL() << "accepted a head size of 48";
    } catch (const UserError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("48"), std::string::npos) << what;
      EXPECT_NE(what.find("kivi"), std::string::npos) << what;
    }
  }
  EXPECT_NO_THROW(PageLayout({NumberFormat::kF16, NumberFormat::kBF16}, Geometry(1, 48)));
}

RC_GTEST_PROP(PlainFormat, ReadsWhatWasWrittenRoundedAsGgmlDoes, (std::uint32_t seed)) {
  RandomData random(seed);
  const KvFormat format{kPlain[random.Below(3)], kPlain[random.Below(3)]};
  const int heads = 1 + random.Below(3);
  const int dim = 16 * (1 + random.Below(16));
  const PageLayout layout(format, Geometry(heads, dim));
  std::vector<std::byte> page(layout.page_bytes());
  // All slots of all heads, in any order: none may disturb another.
  const std::size_t rows = Size(heads * kPageSlots);
  const auto keys = AnyFloats(random, rows * Size(dim));
  const auto values = AnyFloats(random, rows * Size(dim));
  const auto row = [&](const std::vector<float>& floats, std::size_t i) {
    return std::span(floats).subspan(i * Size(dim), Size(dim));
  };
  const std::size_t start = Size(random.Below(heads * kPageSlots));
  for (std::size_t n = 0; n < rows; ++n) {
    const std::size_t i = (start + 37 * n) % rows;
    WriteSlot(layout, page.data(), static_cast<int>(i) / kPageSlots,
              static_cast<int>(i) % kPageSlots, row(keys, i), row(values, i));
  }
  std::vector<float> out(Size(dim));
  for (std::size_t i = 0; i < rows; ++i) {
    const int head = static_cast<int>(i) / kPageSlots;
    const int slot = static_cast<int>(i) % kPageSlots;
    ReadKey(layout, page.data(), head, slot, out);
    for (std::size_t c = 0; c < out.size(); ++c) {
      RC_ASSERT(SameBits(out[c], Rounded(format.keys, row(keys, i)[c])));
    }
    ReadValue(layout, page.data(), head, slot, out);
    for (std::size_t c = 0; c < out.size(); ++c) {
      RC_ASSERT(SameBits(out[c], Rounded(format.values, row(values, i)[c])));
    }
  }
}

RC_GTEST_PROP(PlainFormat, KeepsWhatItReadBitForBit, (std::uint32_t seed)) {
  RandomData random(seed);
  const NumberFormat format = kPlain[random.Below(3)];
  const PageLayout layout({format, format}, Geometry(1, 16));
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<std::byte> copy(layout.page_bytes());
  std::vector<float> key(16);
  std::vector<float> value(16);
  for (int slot = 0; slot < kPageSlots; ++slot) {
    WriteSlot(layout, page.data(), 0, slot, AnyFloats(random, 16), AnyFloats(random, 16));
    ReadKey(layout, page.data(), 0, slot, key);
    ReadValue(layout, page.data(), 0, slot, value);
    WriteSlot(layout, copy.data(), 0, slot, key, value);
  }
  RC_ASSERT(page == copy);
}

RC_GTEST_PROP(AnyFormat, WriteGroupOfPlainNumbersIsWriteSlot, (std::uint32_t seed)) {
  RandomData random(seed);
  const KvFormat format{kPlain[random.Below(3)], kPlain[random.Below(3)]};
  const PageLayout layout(format, Geometry(1, 48));
  const auto keys = AnyFloats(random, kGroupSlots * 48);
  const auto values = AnyFloats(random, kGroupSlots * 48);
  std::vector<std::byte> grouped(layout.page_bytes());
  std::vector<std::byte> single(layout.page_bytes());
  WriteGroup(layout, grouped.data(), 0, 32, keys, values);
  for (int s = 0; s < kGroupSlots; ++s) {
    WriteSlot(layout, single.data(), 0, 32 + s, std::span(keys).subspan(Size(s) * 48, 48),
              std::span(values).subspan(Size(s) * 48, 48));
  }
  RC_ASSERT(grouped == single);
}

// And nothing else: not another slot, nor another head.
RC_GTEST_PROP(PlainFormat, CopySlotCopiesTheBits, (std::uint32_t seed)) {
  RandomData random(seed);
  const KvFormat format{kPlain[random.Below(3)], kPlain[random.Below(3)]};
  const int dim = 16 * (1 + random.Below(8));
  const PageLayout layout(format, Geometry(2, dim));
  std::vector<std::byte> from(layout.page_bytes());
  std::vector<std::byte> to(layout.page_bytes());
  for (int head = 0; head < 2; ++head) {
    for (int slot = 0; slot < kPageSlots; ++slot) {
      WriteSlot(layout, from.data(), head, slot, AnyFloats(random, Size(dim)),
                AnyFloats(random, Size(dim)));
      WriteSlot(layout, to.data(), head, slot, AnyFloats(random, Size(dim)),
                AnyFloats(random, Size(dim)));
    }
  }
  const int head = random.Below(2);
  const int from_slot = random.Below(kPageSlots);
  const int to_slot = random.Below(kPageSlots);
  std::vector<float> key(Size(dim));
  std::vector<float> value(Size(dim));
  ReadKey(layout, from.data(), head, from_slot, key);
  ReadValue(layout, from.data(), head, from_slot, value);
  std::vector<std::byte> expected = to;
  WriteSlot(layout, expected.data(), head, to_slot, key, value);
  CopySlot(layout, from.data(), from_slot, to.data(), to_slot, head);
  RC_ASSERT(to == expected);
}

}  // namespace
}  // namespace vericache
