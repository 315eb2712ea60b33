#pragma once

#include <cstddef>
#include <optional>

#include "attention/kernel.h"

namespace vericache {

// Attention as matrix products on the AMX unit; nullopt where there is none.
std::optional<AttentionKernel> AmxKernel();

// Floats that it needs beside its result.
std::size_t AmxWorkspaceFloats(int head_dim);

}  // namespace vericache
