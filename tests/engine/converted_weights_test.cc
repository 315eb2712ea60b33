// Weights that are converted when they are loaded.
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

class ConvertedWeights : public testing::TestWithParam<ggml_type> {};

Model Load(const TinyModel& tiny, ggml_type as, int threads = 1) {
  return Model(TinyGgufPath(tiny), {.threads = threads, .weights = {.as = as}});
}

// From f32 numbers: the same bits as in a file that was written in the type.
TEST_P(ConvertedWeights, AreThoseOfAFileInTheirType) {
  const Model there = Load({}, GetParam(), /*threads=*/3);
  const Model& written = LoadTiny({.type = GetParam()});
  const std::vector<ggml_tensor*> have = there.weights().matrices();
  const std::vector<ggml_tensor*> want = written.weights().matrices();
  ASSERT_EQ(have.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(have[i]->type, GetParam());
    ASSERT_EQ(ggml_nbytes(have[i]), ggml_nbytes(want[i]));
    EXPECT_EQ(std::memcmp(have[i]->data, want[i]->data, ggml_nbytes(want[i])), 0)
        << ggml_get_name(want[i]);
  }
  EXPECT_EQ(there.weights().bytes(), written.weights().bytes());
}

// From quantized numbers: what ggml's own conversions say of each row.
TEST_P(ConvertedWeights, AreWhatTheQuantizedOnesMeant) {
  const TinyModel tiny{.type = GGML_TYPE_Q4_K, .other_type = GGML_TYPE_Q6_K};
  const Model converted = Load(tiny, GetParam());
  const std::vector<ggml_tensor*> have = converted.weights().matrices();
  const std::vector<ggml_tensor*> from = LoadTiny(tiny).weights().matrices();
  ASSERT_EQ(have.size(), from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::int64_t count = ggml_nelements(from[i]);
    std::vector<float> numbers(static_cast<std::size_t>(count));
    ggml_get_type_traits(from[i]->type)->to_float(from[i]->data, numbers.data(), count);
    std::vector<std::byte> wanted(ggml_nbytes(have[i]));
    ggml_quantize_chunk(GetParam(), numbers.data(), wanted.data(), 0, ggml_nrows(from[i]),
                        from[i]->ne[0], nullptr);
    EXPECT_EQ(std::memcmp(have[i]->data, wanted.data(), wanted.size()), 0)
        << ggml_get_name(from[i]);
  }
}

TEST_P(ConvertedWeights, AreLossless) {
  const Model model = Load({.type = GGML_TYPE_Q4_1, .other_type = GGML_TYPE_Q6_K}, GetParam());
  ASSERT_EQ(model.reports().size(), 1U);
  EXPECT_TRUE(model.reports()[0].exact);
  const std::vector<Prompt> prompts = {
      {.id = "a", .tokens = RandomTokens(230, 320, 1), .max_tokens = 28},
      {.id = "b", .tokens = RandomTokens(247, 320, 2), .max_tokens = 28}};
  const std::vector<Result> full = RunFull(model, prompts);
  for (const int batch : {1, 2}) {
    EngineOptions options = VeriCacheOptions("kivi4", 1.0, 8);
    options.batch = batch;
    EXPECT_EQ(Difference(full, RunEngine(model, options, prompts)), "") << "batch " << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(, ConvertedWeights, testing::Values(GGML_TYPE_Q8_0, GGML_TYPE_BF16),
                         [](const auto& each) { return std::string(ggml_type_name(each.param)); });

}  // namespace
}  // namespace vericache
