// The rotation of the rotated formats: an orthogonal matrix, the same for queries and keys, so that
// their products stay as they are, while each number of a rotated row holds a bit of all channels
// and none is an outlier.
#pragma once

#include <span>

namespace vericache {

// Channels are rotated in blocks of the largest power of two that divides their number: signs that
// look random, the same in every row, then a Walsh-Hadamard transform scaled to keep lengths (as
// QuaRot, Ashkboos et al. 2024, arXiv 2404.00456, has it). In place; bits depend on the row alone.
void Rotate(std::span<float> row);

// The inverse.
void RotateBack(std::span<float> row);

}  // namespace vericache
