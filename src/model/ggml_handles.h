#pragma once

#include <memory>

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"

namespace vericache {

// Owners of ggml's handles.
struct GgmlDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
using GgmlContext = std::unique_ptr<ggml_context, GgmlDeleter>;
using GgufContext = std::unique_ptr<gguf_context, GgmlDeleter>;
using GgmlBuffer = std::unique_ptr<ggml_backend_buffer, GgmlDeleter>;

}  // namespace vericache
