#include "model/rope.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

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

namespace {

// Channels turn in pairs. Whether a channel is the second one of its pair.
bool IsSecond(const RopeParams& rope, std::size_t channel) {
  const auto rotated = static_cast<std::size_t>(rope.dims);
  return channel < rotated && (rope.neox ? channel >= rotated / 2 : channel % 2 == 1);
}

// Two vectors, rotated by each position: one has ones in the firsts of all pairs, and in what does
// not turn, the other one in the seconds. [position][2][head_dim]
std::vector<float> RotatedUnits(const Model& model, std::span<const std::int32_t> at) {
  const ModelParams& params = model.params();
  const auto dim = static_cast<std::size_t>(params.head_dim);
  const std::size_t rows = at.size();
  const std::size_t floats = 2 * 2 * dim * rows;
  const GgmlContext context(
      ggml_init({.mem_size = floats * sizeof(float) + 16 * ggml_tensor_overhead() +
                             ggml_graph_overhead() + rows * sizeof(std::int32_t) + 4096,
                 .mem_buffer = nullptr}));
  const auto count = static_cast<std::int64_t>(rows);
  ggml_tensor* positions = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, count);
  std::ranges::copy(at, static_cast<std::int32_t*>(positions->data));
  ggml_tensor* units = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, params.head_dim, 2, count);
  auto* unit = static_cast<float*>(units->data);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t c = 0; c < dim; ++c) {
      unit[(2 * row) * dim + c] = IsSecond(params.rope, c) ? 0.0F : 1.0F;
      unit[(2 * row + 1) * dim + c] = IsSecond(params.rope, c) ? 1.0F : 0.0F;
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
  const auto* turned = static_cast<const float*>(out->data);
  return {turned, turned + 2 * rows * dim};
}

}  // namespace

std::vector<float> AverageRotation(const Model& model, Position first, int count) {
  if (count == 0) {
    return {};
  }
  const ModelParams& params = model.params();
  const auto dim = static_cast<std::size_t>(params.head_dim);
  const auto rotated = static_cast<std::size_t>(params.rope.dims);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), Raw(first));
  const std::vector<float> turned = RotatedUnits(model, positions);
  std::vector<double> sums(2 * dim);
  for (std::size_t row = 0; row < positions.size(); ++row) {
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
    const std::size_t vector = IsSecond(params.rope, c) ? 1 : 0;
    matrix[c * dim + c] = mean(vector, c);
    if (c < rotated) {  // what of this channel goes to the other one of its pair
      const std::size_t other = IsSecond(params.rope, c) ? c - apart : c + apart;
      matrix[other * dim + c] = mean(vector, other);
    }
  }
  return matrix;
}

std::shared_ptr<const RopeTable> RopeTableOf(const Model& model) {
  const ModelParams& params = model.params();
  const auto dim = static_cast<std::size_t>(params.head_dim);
  const auto pairs = static_cast<std::size_t>(params.rope.dims / 2);
  const auto steps =
      static_cast<std::size_t>((params.context + RopeTable::kStep - 1) / RopeTable::kStep);
  std::vector<std::int32_t> positions;
  positions.reserve(steps + RopeTable::kFine);
  for (std::size_t step = 0; step < steps; ++step) {
    positions.push_back(static_cast<std::int32_t>(step) * RopeTable::kStep);
  }
  for (std::int32_t i = 0; i < RopeTable::kFine; ++i) {
    positions.push_back(i);
  }
  const std::vector<float> turned = RotatedUnits(model, positions);
  RopeTable::Angles coarse;
  RopeTable::Angles fine{.cosines = std::vector<float>(pairs * RopeTable::kFine),
                         .sines = std::vector<float>(pairs * RopeTable::kFine)};
  for (std::size_t row = 0; row < positions.size(); ++row) {
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      const std::size_t first = params.rope.neox ? pair : 2 * pair;
      const std::size_t second = params.rope.neox ? pair + pairs : 2 * pair + 1;
      const float cosine = turned[2 * row * dim + first];
      const float sine = turned[2 * row * dim + second];
      if (row < steps) {
        coarse.cosines.push_back(cosine);
        coarse.sines.push_back(sine);
      } else {
        const float length = turned[first];  // of any rotation: at position 0 it is the cosine
        const std::size_t at = pair * RopeTable::kFine + row - steps;
        fine.cosines[at] = cosine / length;
        fine.sines[at] = sine / length;
      }
    }
  }
  return std::make_shared<const RopeTable>(params.rope.dims, params.rope.neox, std::move(coarse),
                                           std::move(fine));
}

}  // namespace vericache
