#pragma once

#include <vector>

#include "model/model.h"

namespace vericache {

// A bias of a key channel beyond this makes it an outlier: the other channels of a key are a few
// units at most. In Qwen2.5's files the largest of a layer is either above 20, up to some hundreds,
// or below 10.
inline constexpr float kOutlierBias = 16.0F;

// For each layer, whether its keys have outlier channels, as their biases tell.
std::vector<bool> LayersWithKeyOutliers(const Model& model);

}  // namespace vericache
