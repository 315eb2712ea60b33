// q8 and q4 are what ggml's q8_0 and q4_0 are, number for number.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "ggml.h"
#include "kvcache/format.h"
#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr NumberFormat kFormats[] = {NumberFormat::kQ8, NumberFormat::kQ4};

// The rows through ggml's own quantizer and back.
std::vector<float> ThroughGgml(NumberFormat format, std::span<const float> rows) {
  const ggml_type type = format == NumberFormat::kQ8 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0;
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::byte> quantized(ggml_row_size(type, count));
  std::vector<float> back(rows.size());
  const ggml_type_traits* traits = ggml_get_type_traits(type);
  traits->from_float_ref(rows.data(), quantized.data(), count);
  traits->to_float(quantized.data(), back.data(), count);
  return back;
}

RC_GTEST_PROP(BlockFormat, IsGgmls, (std::uint32_t seed)) {
  RandomData random(seed);
  const int dim = 32 * (1 + random.Below(8));
  const KvFormat format{kFormats[random.Below(2)], kFormats[random.Below(2)]};
  const PageLayout layout(format, {.layers = 1, .kv_heads = 2, .head_dim = dim});
  std::vector<std::byte> page(layout.page_bytes());
  const std::size_t count = Size(kGroupSlots * dim);
  std::vector<std::vector<float>> keys;
  std::vector<std::vector<float>> values;
  for (const int head : {1, 0}) {
    for (const int half : {kGroupSlots, 0}) {
      keys.push_back(random.WithOutliers(count, dim, 7));
      values.push_back(random.WithOutliers(count, dim, 11));
      WriteGroup(layout, page.data(), head, half, keys.back(), values.back());
    }
  }
  std::vector<float> read(Size(dim));
  std::size_t written = 0;
  for (const int head : {1, 0}) {
    for (const int half : {kGroupSlots, 0}) {
      const std::vector<float> expected_keys = ThroughGgml(format.keys, keys[written]);
      const std::vector<float> expected_values = ThroughGgml(format.values, values[written]);
      ++written;
      for (int s = 0; s < kGroupSlots; ++s) {
        const std::size_t row = Size(s * dim);
        ReadKey(layout, page.data(), head, half + s, read);
        RC_ASSERT(std::memcmp(read.data(), expected_keys.data() + row, Size(dim) * 4) == 0);
        ReadValue(layout, page.data(), head, half + s, read);
        RC_ASSERT(std::memcmp(read.data(), expected_values.data() + row, Size(dim) * 4) == 0);
      }
    }
  }
}

// Zeros, numbers too small for half precision's range, too large for it, and none at all.
TEST(BlockFormat, HoldsWhatIsNotANumberOrFarAway) {
  for (const NumberFormat format : kFormats) {
    const PageLayout layout({format, format}, {.layers = 1, .kv_heads = 1, .head_dim = 32});
    for (const float number :
         {0.0F, 1e-40F, 1e-12F, -1e-12F, 1e30F, std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<std::byte> page(layout.page_bytes(), std::byte{0xFF});
      WriteGroup(layout, page.data(), 0, 0, std::vector<float>(1024, number),
                 std::vector<float>(1024, number));
      std::vector<float> out(32);
      ReadKey(layout, page.data(), 0, 5, out);
      for (const float each : out) {
        EXPECT_TRUE(std::isfinite(each)) << number;
        EXPECT_LE(std::abs(each), 66000.0F);
      }
      ReadValue(layout, page.data(), 0, 5, out);
      for (const float each : out) {
        EXPECT_TRUE(std::isfinite(each)) << number;
      }
    }
  }
}

}  // namespace
}  // namespace vericache
