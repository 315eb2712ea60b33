#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "model/params.h"

namespace vericache {

// y = W x + b; bias is nullptr where there is none.
struct LinearWeights {
  ggml_tensor* weight = nullptr;
  ggml_tensor* bias = nullptr;
};

// Bundle of ggml's RAII-less handles.
struct GgmlDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};
using GgmlContext = std::unique_ptr<ggml_context, GgmlDeleter>;
using GgmlBuffer = std::unique_ptr<ggml_backend_buffer, GgmlDeleter>;

struct LayerWeights {
  ggml_tensor* attention_norm = nullptr;
  LinearWeights query, key, value, output;
  ggml_tensor* query_norm = nullptr;  // qwen3: per head
  ggml_tensor* key_norm = nullptr;
  ggml_tensor* feed_forward_norm = nullptr;
  LinearWeights gate, up, down;
};

// What matrices may be converted to.
inline constexpr std::array kWeightTypes = {GGML_TYPE_Q8_0, GGML_TYPE_BF16};

// A model's tensors in memory.
class Weights {
 public:
  // Reads all tensors, as they are in the file, or matrices converted to the type `as`. Throws
  // UserError where one is missing, has another shape than the metadata says or is unknown
  // (ignoring it would change the output), or where memory does not suffice.
  Weights(const GgufFile& file, const ModelParams& params, std::optional<ggml_type> as,
          int threads);

  ggml_tensor* token_embedding() const { return token_embedding_; }
  ggml_tensor* output_norm() const { return output_norm_; }
  // The embedding itself where the output is tied.
  ggml_tensor* output() const { return output_; }
  // Frequency factors of Llama 3; nullptr where there are none.
  ggml_tensor* rope_factors() const { return rope_factors_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  // Every matrix that rows are multiplied with.
  std::vector<ggml_tensor*> matrices() const;
  Bytes bytes() const;

 private:
  GgmlContext context_;
  GgmlBuffer buffer_;
  ggml_tensor* token_embedding_ = nullptr;
  ggml_tensor* output_norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
  ggml_tensor* rope_factors_ = nullptr;
  std::vector<LayerWeights> layers_;
};

}  // namespace vericache
