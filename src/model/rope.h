#pragma once

#include <vector>

#include "base/types.h"
#include "ggml.h"
#include "model/model.h"

namespace vericache {

// x, [head_dim, heads, rows], rotated by its rows' positions. `factors` may be nullptr.
ggml_tensor* Rotate(ggml_context* context, ggml_tensor* x, ggml_tensor* positions,
                    const RopeParams& rope, ggml_tensor* factors);

// The rotations of positions [first, first + count), averaged: a matrix [head_dim][head_dim], by
// which a query or key is multiplied. Empty where count is 0.
std::vector<float> AverageRotation(const Model& model, Position first, int count);

}  // namespace vericache
