// The average rotation against rotating every position by itself, for each RoPE variant.
#include "model/rope.h"

#include <cmath>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "gtest/gtest.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr int kFirst = 700;
constexpr int kCount = 9;

class Rope : public testing::TestWithParam<std::pair<std::string, TinyRope>> {};

TEST_P(Rope, AverageRotationIsTheMeanOfRotations) {
  const auto& [architecture, rope] = GetParam();
  const Model& model = LoadTiny({.architecture = architecture, .rope = rope});
  const int dim = model.params().head_dim;
  const GgmlContext context(ggml_init({.mem_size = std::size_t{1} << 20U, .mem_buffer = nullptr}));
  ggml_tensor* positions = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, kCount);
  ggml_tensor* x = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, dim, 1, kCount);
  std::vector<float> vector;
  for (int c = 0; c < dim; ++c) {
    vector.push_back(std::sin(static_cast<float>(c * c + 1)));
  }
  for (int i = 0; i < kCount; ++i) {
    static_cast<std::int32_t*>(positions->data)[i] = kFirst + i;
    std::copy(vector.begin(), vector.end(), static_cast<float*>(x->data) + i * dim);
  }
  ggml_tensor* turned =
      Rotate(context.get(), x, positions, model.params().rope, model.weights().rope_factors());
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, turned);
  ASSERT_EQ(ggml_graph_compute_with_ctx(context.get(), graph, 1), GGML_STATUS_SUCCESS);

  const std::vector<float> matrix = AverageRotation(model, Position{kFirst}, kCount);
  ASSERT_EQ(matrix.size(), vector.size() * vector.size());
  for (std::size_t i = 0; i < vector.size(); ++i) {
    float expected = 0.0F;
    for (std::size_t row = 0; row < kCount; ++row) {
      expected += static_cast<float*>(turned->data)[row * vector.size() + i] / kCount;
    }
    float actual = 0.0F;
    for (std::size_t j = 0; j < vector.size(); ++j) {
      actual += matrix[i * vector.size() + j] * vector[j];
    }
    EXPECT_NEAR(actual, expected, 1e-5F) << i;
  }
  EXPECT_TRUE(AverageRotation(model, Position{kFirst}, 0).empty());
}

INSTANTIATE_TEST_SUITE_P(, Rope,
                         testing::Values(std::pair("llama", TinyRope::kPlain),
                                         std::pair("llama", TinyRope::kFactors),
                                         std::pair("qwen2", TinyRope::kPlain),
                                         std::pair("qwen2", TinyRope::kLinear),
                                         std::pair("qwen3", TinyRope::kYarn)));

}  // namespace
}  // namespace vericache
