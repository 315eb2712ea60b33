#pragma once

#include <compare>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "model/ggml_handles.h"
#include "model/params.h"
#include "model/weight_form.h"

namespace vericache {

// y = W x + b; bias is nullptr where there is none.
struct LinearWeights {
  ggml_tensor* weight = nullptr;
  ggml_tensor* bias = nullptr;
};

struct LayerWeights {
  ggml_tensor* attention_norm = nullptr;
  LinearWeights query, key, value, output;
  ggml_tensor* query_norm = nullptr;  // qwen3: per head
  ggml_tensor* key_norm = nullptr;
  ggml_tensor* feed_forward_norm = nullptr;
  LinearWeights gate, up, down;
};

// What decides which of ggml's code multiplies with a matrix.
struct MatrixKind {
  ggml_type type;
  bool packed;

  auto operator<=>(const MatrixKind&) const = default;
};
MatrixKind KindOf(const ggml_tensor* matrix);

// A model's tensors in memory.
class Weights {
 public:
  // Reads all tensors, matrices in the given form. Throws UserError where one is missing, has
  // another shape than the metadata says or is unknown (ignoring it would change the output), or
  // where memory does not suffice.
  Weights(const GgufFile& file, const ModelParams& params, const WeightForm& form, int threads);

  ggml_tensor* token_embedding() const { return token_embedding_; }
  ggml_tensor* output_norm() const { return output_norm_; }
  // Where the output is tied: the embedding itself, or its packed twin.
  ggml_tensor* output() const { return output_; }
  // Frequency factors of Llama 3; nullptr where there are none.
  ggml_tensor* rope_factors() const { return rope_factors_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  // Every matrix that rows are multiplied with.
  std::vector<ggml_tensor*> matrices() const;
  Bytes bytes() const;

 private:
  // Tensors whose memory is laid out alike.
  struct Store {
    ggml_backend_buffer_type_t buffers;
    GgmlContext context;
    GgmlBuffer buffer;
  };
  class Declarer;

  std::vector<Store> stores_;
  ggml_tensor* token_embedding_ = nullptr;
  ggml_tensor* output_norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
  ggml_tensor* rope_factors_ = nullptr;
  std::vector<LayerWeights> layers_;
};

}  // namespace vericache
