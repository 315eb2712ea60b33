// Every weight type, alone and mixed as in common files, at draft lengths and batches that cross
// the borders between ggml's classes of row counts.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

struct Types {
  ggml_type type;
  std::optional<ggml_type> other;
};

class WeightTypes : public testing::TestWithParam<Types> {};

void ExpectLossless(const Model& model) {
  std::vector<Prompt> prompts;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back({.id = std::to_string(i),
                       .tokens = RandomTokens(230 + 17 * i, 320, static_cast<unsigned>(i)),
                       .max_tokens = 28});
  }
  const std::vector<Result> full = RunFull(model, prompts);
  for (const char* compressor : {"none", "kivi4"}) {
    for (const int draft_length : {1, 4, 16}) {
      for (const int batch : {1, 3}) {
        EngineOptions options = VeriCacheOptions(compressor, 1.0, draft_length);
        options.batch = batch;
        options.prefill_chunk = batch == 1 ? 50 : 512;
        EXPECT_EQ(Difference(full, RunEngine(model, options, prompts)), "")
            << compressor << " draft length " << draft_length << " batch " << batch;
      }
    }
  }
}

TinyModel TinyOf(const Types& types) {
  return {.feed_forward = 512, .type = types.type, .other_type = types.other};
}

TEST_P(WeightTypes, Lossless) { ExpectLossless(LoadTiny(TinyOf(GetParam()))); }

TEST_P(WeightTypes, LosslessPacked) {
  const Model model(TinyGgufPath(TinyOf(GetParam())), {.weights = {.packed = true}});
  const auto is_packed = [](const TypeReport& report) { return report.kind.packed; };
  if (std::ranges::none_of(model.reports(), is_packed)) {
    GTEST_SKIP() << "skipped: ggml has no other layout for these here";
  }
  for (const TypeReport& report : model.reports()) {
    EXPECT_TRUE(report.exact) << ggml_type_name(report.kind.type);
  }
  ExpectLossless(model);
}

std::string Name(const testing::TestParamInfo<Types>& info) {
  std::string name = ggml_type_name(info.param.type);
  if (info.param.other) {
    name += std::string("_with_") + ggml_type_name(*info.param.other);
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(, WeightTypes,
                         testing::Values(Types{GGML_TYPE_F32, {}}, Types{GGML_TYPE_F16, {}},
                                         Types{GGML_TYPE_BF16, {}}, Types{GGML_TYPE_Q8_0, {}},
                                         Types{GGML_TYPE_Q4_0, {}}, Types{GGML_TYPE_Q4_1, {}},
                                         Types{GGML_TYPE_Q5_0, {}}, Types{GGML_TYPE_Q5_1, {}},
                                         Types{GGML_TYPE_IQ4_NL, {}}, Types{GGML_TYPE_Q2_K, {}},
                                         Types{GGML_TYPE_Q3_K, {}}, Types{GGML_TYPE_Q4_K, {}},
                                         Types{GGML_TYPE_Q5_K, {}}, Types{GGML_TYPE_Q6_K, {}},
                                         Types{GGML_TYPE_Q4_K, GGML_TYPE_Q6_K},
                                         Types{GGML_TYPE_Q5_0, GGML_TYPE_Q8_0}),
                         Name);

}  // namespace
}  // namespace vericache
