#pragma once

#include <vector>

#include "attention/kernel.h"

namespace vericache {

// The Highway implementation, once per instruction set that this machine can run, the widest last.
std::vector<AttentionKernel> SimdKernels();

}  // namespace vericache
