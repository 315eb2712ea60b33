// Our forward pass against libllama's: the same file must mean the same model.
#include "support/oracle.h"

#include <cstdio>
#include <string>
#include <vector>

#include "attention/kernel.h"
#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr int kPositions = 300;

LogitsComparison Compare(const TinyModel& tiny, NumberFormat cache) {
  const Model& model = LoadTiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(kPositions, tiny.vocabulary, 11);
  const std::vector<float> oracle = OracleLogits(TinyGgufPath(tiny), tokens, cache);
  const LogitsComparison result =
      CompareLogits(oracle, OurLogits(model, tokens, cache, 100), tiny.vocabulary);
  std::printf("%s, %s cache: %s\n", tiny.Describe().c_str(), std::string(Name(cache)).c_str(),
              result.Describe().c_str());
  return result;
}

struct Variant {
  std::string architecture;
  bool tied;
  TinyRope rope;
  std::string name;
};

class Oracle : public testing::TestWithParam<Variant> {};

// Of the logits' deviation: the order of additions, and what the kernel's products lose.
double F32Error() { return 1e-4 + 10.0 * SelectKernel().product_error; }

// With float weights and caches, only the arithmetic differs.
TEST_P(Oracle, SameLogitsInF32) {
  const LogitsComparison result = Compare(
      {.architecture = GetParam().architecture, .tied = GetParam().tied, .rope = GetParam().rope},
      NumberFormat::kF32);
  EXPECT_LT(result.largest, F32Error() * result.spread);
  EXPECT_LT(result.widest_margin, F32Error() * result.spread);
}

TEST_P(Oracle, SameLogitsInF16Cache) {
  const LogitsComparison result = Compare(
      {.architecture = GetParam().architecture, .tied = GetParam().tied, .rope = GetParam().rope},
      NumberFormat::kF16);
  EXPECT_LT(result.largest, 0.02 * result.spread);
  EXPECT_LT(result.widest_margin, 0.01 * result.spread);
}

INSTANTIATE_TEST_SUITE_P(, Oracle,
                         testing::Values(Variant{"llama", false, TinyRope::kPlain, "llama"},
                                         Variant{"llama", true, TinyRope::kPlain, "llama_tied"},
                                         Variant{"llama", false, TinyRope::kLinear, "llama_linear"},
                                         Variant{"llama", false, TinyRope::kYarn, "llama_yarn"},
                                         Variant{"llama", true, TinyRope::kFactors,
                                                 "llama_rope_factors"},
                                         Variant{"qwen2", false, TinyRope::kPlain, "qwen2"},
                                         Variant{"qwen2", true, TinyRope::kPlain, "qwen2_tied"},
                                         Variant{"qwen2", true, TinyRope::kLinear, "qwen2_linear"},
                                         Variant{"qwen2", false, TinyRope::kYarn, "qwen2_yarn"},
                                         Variant{"qwen3", false, TinyRope::kPlain, "qwen3"},
                                         Variant{"qwen3", true, TinyRope::kPlain, "qwen3_tied"},
                                         Variant{"qwen3", true, TinyRope::kLinear, "qwen3_linear"},
                                         Variant{"qwen3", false, TinyRope::kYarn, "qwen3_yarn"}),
                         [](const auto& each) { return each.param.name; });

// Head size and embedding need not agree (Qwen3), nor heads and KV heads, nor the heads be few.
TEST(OracleShapes, SameLogits) {
  for (const TinyModel& tiny :
       {TinyModel{.architecture = "qwen3", .heads = 8, .kv_heads = 2, .head_dim = 64},
        TinyModel{.architecture = "qwen3", .heads = 4, .kv_heads = 4, .head_dim = 128},
        TinyModel{.layers = 1, .heads = 8, .kv_heads = 8, .head_dim = 32},
        TinyModel{.layers = 3, .heads = 8, .kv_heads = 1, .head_dim = 32, .vocabulary = 333},
        TinyModel{.architecture = "qwen2",
                  .heads = 14,
                  .kv_heads = 2,
                  .head_dim = 32,
                  .embedding = 448}}) {
    const LogitsComparison result = Compare(tiny, NumberFormat::kF32);
    EXPECT_LT(result.largest, F32Error() * result.spread);
    EXPECT_LT(result.widest_margin, F32Error() * result.spread);
  }
}

// Quantized weights: both quantize each activation row, so a last bit may tip a rounding.
TEST(OracleTypes, SameLogits) {
  for (const ggml_type type :
       {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
        GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K,
        GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K}) {
    const LogitsComparison result = Compare({.type = type}, NumberFormat::kF32);
    EXPECT_LT(result.largest, 0.2 * result.spread) << ggml_type_name(type);
    EXPECT_LT(result.root_mean_square, 0.02 * result.spread) << ggml_type_name(type);
    EXPECT_LT(result.widest_margin, 0.05 * result.spread) << ggml_type_name(type);
  }
}

}  // namespace
}  // namespace vericache
