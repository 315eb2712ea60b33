#include "attention/kernel_scalar.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vericache {
namespace {

void AttendChunk(const ChunkInput& input, std::span<float> workspace, const Partial& result) {
  const auto dim = static_cast<std::size_t>(input.segment.layout->head_dim());
  const std::span<float> scores = workspace.subspan(0, kChunkSlots);
  const std::span<float> row = workspace.subspan(kChunkSlots, dim);
  for (std::size_t q = 0; q < input.visible.size(); ++q) {
    const int end = std::min(input.end, input.visible[q]);
    const std::span<const float> query = input.queries.subspan(q * dim, dim);
    const std::span<float> out = result.out.subspan(q * dim, dim);
    std::fill(out.begin(), out.end(), 0.0F);
    result.max[q] = -std::numeric_limits<float>::infinity();
    result.sum[q] = 0.0F;
    for (int slot = input.begin; slot < end; ++slot) {
      KeyAt(input.segment, input.kv_head, slot, row);
      float score = 0.0F;
      for (std::size_t c = 0; c < dim; ++c) {
        score = std::fma(query[c], row[c], score);
      }
      scores[static_cast<std::size_t>(slot - input.begin)] = score;
      result.max[q] = std::max(result.max[q], score);
    }
    for (int slot = input.begin; slot < end; ++slot) {
      const float exponent = scores[static_cast<std::size_t>(slot - input.begin)] - result.max[q];
      if (exponent < kMinExponent) {
        continue;
      }
      const float weight = std::exp(exponent);
      ValueAt(input.segment, input.kv_head, slot, row);
      result.sum[q] += weight;
      for (std::size_t c = 0; c < dim; ++c) {
        out[c] = std::fma(weight, row[c], out[c]);
      }
    }
  }
}

void Merge(const Partial& part, const Partial& total) {
  const std::size_t dim = part.out.size() / part.max.size();
  for (std::size_t q = 0; q < part.max.size(); ++q) {
    const float max = std::max(part.max[q], total.max[q]);
    if (max == -std::numeric_limits<float>::infinity()) {
      continue;
    }
    const float part_weight = std::exp(part.max[q] - max);
    const float total_weight = std::exp(total.max[q] - max);
    total.max[q] = max;
    total.sum[q] = total.sum[q] * total_weight + part.sum[q] * part_weight;
    for (std::size_t c = q * dim; c < (q + 1) * dim; ++c) {
      total.out[c] = total.out[c] * total_weight + part.out[c] * part_weight;
    }
  }
}

void Finish(const Partial& total) {
  const std::size_t dim = total.out.size() / total.max.size();
  for (std::size_t q = 0; q < total.max.size(); ++q) {
    const float scale = 1.0F / total.sum[q];
    for (std::size_t c = q * dim; c < (q + 1) * dim; ++c) {
      total.out[c] *= scale;
    }
  }
}

}  // namespace

AttentionKernel ScalarKernel() {
  return {.name = "scalar", .attend_chunk = AttendChunk, .merge = Merge, .finish = Finish};
}

}  // namespace vericache
