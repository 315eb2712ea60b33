#pragma once

#include <span>

#include "ggml.h"
#include "model/gguf_file.h"

namespace vericache {

// Reads tensors, which have memory, from those of the same names in the file. Where the type is
// another one, numbers are converted: to f32, and rounded to the nearest (ggml's reference
// quantizers). Throws UserError where reading fails.
void ReadTensors(const GgufFile& file, std::span<ggml_tensor* const> tensors, int threads);

}  // namespace vericache
