#pragma once

#include <memory>
#include <vector>

#include "base/types.h"
#include "ggml.h"
#include "kvcache/rope_table.h"
#include "model/model.h"

namespace vericache {

// x, [head_dim, heads, rows], rotated by its rows' positions. `factors` may be nullptr.
ggml_tensor* Rotate(ggml_context* context, ggml_tensor* x, ggml_tensor* positions,
                    const RopeParams& rope, ggml_tensor* factors);

// The rotations of positions [first, first + count), averaged: a matrix [head_dim][head_dim], by
// which a query or key is multiplied. Empty where count is 0.
std::vector<float> AverageRotation(const Model& model, Position first, int count);

// The rotations of all positions of the model's context, as ggml computes those of a table.
std::shared_ptr<const RopeTable> RopeTableOf(const Model& model);

}  // namespace vericache
