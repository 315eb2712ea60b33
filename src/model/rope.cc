#include "model/rope.h"

#include <cstring>

#include "base/check.h"
#include "ggml-cpu.h"

namespace vericache {

ggml_tensor* Rotate(ggml_context* context, ggml_tensor* x, ggml_tensor* positions,
                    const RopeParams& rope, ggml_tensor* factors) {
  return ggml_rope_ext(context, x, positions, factors, rope.dims,
                       rope.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                       rope.original_context, rope.base, rope.scale, rope.extrapolation,
                       rope.attention, rope.beta_fast, rope.beta_slow);
}

std::vector<float> AverageRotation(const Model& model, Position first, int count) {
  if (count == 0) {
    return {};
  }
  const ModelParams& params = model.params();
  const auto dim = static_cast<std::size_t>(params.head_dim);
  const auto rotated = static_cast<std::size_t>(params.rope.dims);
  const auto rows = static_cast<std::size_t>(count);
  const std::size_t floats = 2 * 2 * dim * rows;
  const GgmlContext context(
      ggml_init({.mem_size = floats * sizeof(float) + 16 * ggml_tensor_overhead() +
                             ggml_graph_overhead() + rows * sizeof(std::int32_t) + 4096,
                 .mem_buffer = nullptr}));
  ggml_tensor* positions = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, count);
  // Channels turn in pairs: of the two vectors of a row one has the firsts of all pairs, and what
  // does not turn, the other one the seconds.
  ggml_tensor* units = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, params.head_dim, 2, count);
  const auto is_second = [&](std::size_t c) {
    return c < rotated && (params.rope.neox ? c >= rotated / 2 : c % 2 == 1);
  };
  auto* unit = static_cast<float*>(units->data);
  for (std::size_t row = 0; row < rows; ++row) {
    static_cast<std::int32_t*>(positions->data)[row] = Raw(first) + static_cast<int>(row);
    for (std::size_t c = 0; c < dim; ++c) {
      unit[(2 * row) * dim + c] = is_second(c) ? 0.0F : 1.0F;
      unit[(2 * row + 1) * dim + c] = is_second(c) ? 1.0F : 0.0F;
    }
  }
  ggml_tensor* out =
      Rotate(context.get(), units, positions, params.rope, model.weights().rope_factors());
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, out);
  std::vector<std::byte> work;
  ggml_cplan plan = ggml_graph_plan(graph, /*n_threads=*/1, nullptr);
  work.resize(plan.work_size);
  plan.work_data = reinterpret_cast<std::uint8_t*>(work.data());
  Check(ggml_graph_compute(graph, &plan) == GGML_STATUS_SUCCESS, "ggml rotates");

  std::vector<double> sums(2 * dim);
  const auto* turned = static_cast<const float*>(out->data);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t c = 0; c < 2 * dim; ++c) {
      sums[c] += static_cast<double>(turned[2 * row * dim + c]);
    }
  }
  std::vector<float> matrix(dim * dim);
  const auto mean = [&](std::size_t vector, std::size_t c) {
    return static_cast<float>(sums[vector * dim + c] / count);
  };
  const std::size_t apart = params.rope.neox ? rotated / 2 : 1;
  for (std::size_t c = 0; c < dim; ++c) {
    const std::size_t vector = is_second(c) ? 1 : 0;
    matrix[c * dim + c] = mean(vector, c);
    if (c < rotated) {  // what of this channel goes to the other one of its pair
      const std::size_t other = is_second(c) ? c - apart : c + apart;
      matrix[other * dim + c] = mean(vector, other);
    }
  }
  return matrix;
}

}  // namespace vericache
