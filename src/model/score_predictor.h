// The network that tells a key's worth from what its layer's attention reads: KVzap's (Jegou and
// Jeblick 2026, "KVzap: Fast, Adaptive, and Faithful KV Cache Pruning"; KVzapPress of
// github.com/NVIDIA/kvpress). In each layer, for each row's normalized hidden state h, of as many
// numbers as an embedding has:
//   scores = down * silu(up * h + up_bias) + down_bias, one for each KV head
// The authors use GELU; x * sigmoid(1.702 x), its usual approximation, is SiLU but for factors that
// the weights take, and libraries know its derivative.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ggml.h"
#include "model/ggml_handles.h"
#include "model/params.h"

namespace vericache {

// Of one layer.
struct PredictorValues {
  std::vector<float> up;         // [hidden][embedding]
  std::vector<float> up_bias;    // [hidden]
  std::vector<float> down;       // [kv_head][hidden]
  std::vector<float> down_bias;  // [kv_head]
};

// A GGUF file's contents: "kvzap.model", and tensors layers.N.up.weight, .up.bias, .down.weight and
// .down.bias in float32. `layers` is not empty, and all of one shape.
std::string PredictorGguf(const std::string& model, std::span<const PredictorValues> layers);

// Where a model's network is looked for where no other file is named.
std::string PredictorFileOf(const std::string& model_path);

class ScorePredictor {
 public:
  // Throws UserError, naming the file and how one is made, where there is none, or it is none for
  // such a model.
  ScorePredictor(const std::string& path, const ModelParams& params);

  const std::string& path() const { return path_; }

  // The scores of rows `hidden`, [row][embedding]: a node [row][kv_head] of the same graph.
  ggml_tensor* Scores(ggml_context* context, int layer, ggml_tensor* hidden) const;

 private:
  struct Layer {
    ggml_tensor* up;
    ggml_tensor* up_bias;
    ggml_tensor* down;
    ggml_tensor* down_bias;
  };

  std::string path_;
  GgmlContext weights_;
  std::vector<Layer> layers_;
};

}  // namespace vericache
