#pragma once

#include <cstddef>
#include <vector>

#include "attention/kernel.h"

namespace vericache {

// The Highway implementation, once per instruction set that this machine can run, the widest last.
std::vector<AttentionKernel> SimdKernels();

// Floats that they need beside their result.
std::size_t SimdWorkspaceFloats(int head_dim);

}  // namespace vericache
