// KIVI's codes, scales and numbers beside those of its authors' own code, tests/reference/kivi.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/size.h"
#include "ggml.h"
#include "kvcache/quantize.h"
#include "nlohmann/json.hpp"
#include "unit_support/draws.h"

namespace vericache {
namespace {

constexpr int kDim = testing::DrawnNumbers::kDim;
constexpr double kHalfUlp = 1.0 / 2048.0;  // of a number in half precision, relative

// Theirs rounds every step to half precision, so a quotient near a half may become the other code.
void ExpectAsTheAuthors(NumberFormat format, const nlohmann::json& expected,
                        const std::vector<float>& numbers, bool by_channel) {
  const auto codes_of_all = expected["codes"].get<std::string>();
  int others = 0;
  for (int group = 0; group < kDim; ++group) {
    const auto at = [&](int i) { return Size(by_channel ? i * kDim + group : group * kDim + i); };
    std::vector<float> together;
    for (int i = 0; i < kGroupSlots; ++i) {
      together.push_back(numbers[at(i)]);
    }
    std::vector<std::uint8_t> codes(together.size());
    const CodeScale scale = Quantize(format, together, codes);
    const double step = expected["scales"][Size(group)];
    EXPECT_NEAR(ggml_fp16_to_fp32(scale.scale), step, 2 * kHalfUlp * step);
    const double minimum = expected["minima"][Size(group)];
    EXPECT_EQ(ggml_fp16_to_fp32(scale.minimum), minimum);
    for (int i = 0; i < kGroupSlots; ++i) {
      const int code = std::stoi(codes_of_all.substr(at(i), 1), nullptr, 16);
      EXPECT_NEAR(codes[Size(i)], code, 1);
      const bool other = codes[Size(i)] != code;
      others += other ? 1 : 0;
      const double read = expected["read"][at(i)];
      const double exact = std::max(std::abs(read), std::abs(minimum));
      EXPECT_NEAR(Dequantize(format, codes[Size(i)], scale), read,
                  (other ? step : 0.0) + 4 * kHalfUlp * (exact + step * code));
    }
  }
  EXPECT_LE(others, kDim * kGroupSlots / 100);
}

TEST(KiviParity, CodesScalesAndNumbersAreTheAuthors) {
  std::ifstream file(VERICACHE_SOURCE_DIR "/tests/reference/kivi_tiny.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const testing::DrawnNumbers drawn;
  for (const NumberFormat format : {NumberFormat::kKivi4, NumberFormat::kKivi2}) {
    SCOPED_TRACE(Name(format));
    const nlohmann::json& expected = fixture[std::to_string(Traits(format).bits)];
    ExpectAsTheAuthors(format, expected["keys"], drawn.keys, /*by_channel=*/true);
    ExpectAsTheAuthors(format, expected["values"], drawn.values, /*by_channel=*/false);
  }
}

}  // namespace
}  // namespace vericache
