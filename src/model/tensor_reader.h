#pragma once

#include "ggml.h"
#include "model/gguf_file.h"

namespace vericache {

// Reads the tensors of a file into those of the same names in `context`, which have memory of the
// host. Where the type is another one, numbers are converted: to f32, and rounded to the nearest
// (ggml's reference quantizers). Throws UserError where reading fails.
void ReadTensors(const GgufFile& file, ggml_context* context, int threads);

}  // namespace vericache
