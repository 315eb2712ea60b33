#pragma once

#include "attention/kernel.h"

namespace vericache {

// One number at a time, through the formats' own definitions: the reference that the others are
// tested against, and the last resort of a machine without any of their instruction sets.
AttentionKernel ScalarKernel();

}  // namespace vericache
