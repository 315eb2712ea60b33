#pragma once

#include <string>

#include "kvcache/format.h"
#include "model/gguf_file.h"

namespace vericache {

// Rotary position embedding, in the terms of ggml_rope_ext.
struct RopeParams {
  int dims = 0;
  bool neox = false;  // pairs (i, i + dims/2) instead of (2i, 2i + 1)
  int original_context = 0;
  float base = 10000.0F;
  float scale = 1.0F;
  float extrapolation = 0.0F;  // 1 for YaRN
  float attention = 1.0F;
  float beta_fast = 32.0F;
  float beta_slow = 1.0F;
};

// The shape of a model, from GGUF metadata.
struct ModelParams {
  std::string architecture;
  std::string name;
  int layers = 0;
  int embedding = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int feed_forward = 0;
  int vocabulary = 0;
  int context = 0;  // tokens that the model was trained on
  float rms_epsilon = 0.0F;
  RopeParams rope;

  CacheGeometry geometry() const {
    return {.layers = layers, .kv_heads = kv_heads, .head_dim = head_dim};
  }
};

// Reads the metadata of a `llama`, `qwen2` or `qwen3` file. Throws UserError, naming it, for
// another architecture or for a variant that the engine does not do (experts, a sliding window,
// LongRoPE, layers of different shapes, key and value heads of different sizes).
ModelParams ReadParams(const GgufFile& file);

}  // namespace vericache
