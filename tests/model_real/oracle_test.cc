// A real model's logits on real text, ours against libllama's. Quantized products round each
// activation to 8 bits, so a last bit anywhere tips roundings in every later layer. The yardstick
// is therefore what libllama differs from itself by where its cache is f16 instead of f32.
#include "support/oracle.h"

#include <cstdio>

#include "gtest/gtest.h"
#include "model/tokenizer.h"
#include "support/real_text.h"

namespace vericache {
namespace {

void Compare(const char* variable) {
  const std::string path = EnvironmentPath(variable);
  if (path.empty()) {
    GTEST_SKIP() << variable << " is not set";
  }
  const Model model(path, {});
  const Tokenizer tokenizer(path);
  std::vector<TokenId> tokens = EnglishTokens(tokenizer, 0, 200);
  const std::vector<TokenId> code = CodeTokens(tokenizer, 0, 120);
  tokens.insert(tokens.end(), code.begin(), code.end());
  const int vocabulary = model.params().vocabulary;
  const std::vector<float> oracle = OracleLogits(path, tokens, NumberFormat::kF32);
  const LogitsComparison noise =
      CompareLogits(oracle, OracleLogits(path, tokens, NumberFormat::kF16), vocabulary);
  const LogitsComparison ours =
      CompareLogits(oracle, OurLogits(model, tokens, NumberFormat::kF32, 128), vocabulary);
  std::printf("libllama, f16 for f32 cache: %s\nours: %s\n", noise.Describe().c_str(),
              ours.Describe().c_str());
  EXPECT_LT(ours.root_mean_square, 1.5 * noise.root_mean_square);
  EXPECT_LT(ours.largest, 2.0 * noise.largest);
  EXPECT_LT(ours.widest_margin, noise.largest);
  EXPECT_LE(ours.other_argmax, ours.positions / 10);
  // Neither do packed or converted weights differ by more.
  for (const WeightForm& form : {WeightForm{.packed = true}, WeightForm{.as = GGML_TYPE_Q8_0}}) {
    const Model as(path, {.weights = form});
    const LogitsComparison converted =
        CompareLogits(oracle, OurLogits(as, tokens, NumberFormat::kF32, 128), vocabulary);
    std::printf("ours %s: %s\n", Name(form).c_str(), converted.Describe().c_str());
    EXPECT_LT(converted.root_mean_square, 1.5 * noise.root_mean_square);
    EXPECT_LE(converted.other_argmax, ours.positions / 10);
  }
}

TEST(RealModelOracle, SameLogits) { Compare("VERICACHE_TEST_MODEL"); }
TEST(RealModelOracle, SameLogitsKQuants) { Compare("VERICACHE_TEST_MODEL_KQUANT"); }

}  // namespace
}  // namespace vericache
