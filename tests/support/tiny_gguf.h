// Small random models as GGUF files, for tests: every architecture, weight type and RoPE variant
// in a fraction of a second.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "ggml.h"
#include "model/model.h"

namespace vericache {

enum class TinyRope { kPlain, kLinear, kYarn, kFactors };

struct TinyModel {
  std::string architecture = "llama";
  int layers = 2;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int embedding = 256;  // K-quants need multiples of 256 here, in heads * head_dim and below
  int feed_forward = 256;
  int vocabulary = 320;
  int context = 2048;
  bool tied = false;
  TinyRope rope = TinyRope::kPlain;
  ggml_type type = GGML_TYPE_F32;
  // Of attn_v, ffn_down and the output, as the Q4_K_M files mix types; otherwise `type` too.
  std::optional<ggml_type> other_type;
  unsigned seed = 1;
  // A vocabulary of the 256 bytes and an end token (so `vocabulary` must be 257), and a chat
  // template; without it the file has no vocabulary at all.
  bool byte_tokens = false;
  // The logit of the last token is 0, so that it never comes up.
  bool never_last_token = false;
  // Further metadata, by whole keys; may replace what is written anyway.
  std::map<std::string, int> integers;
  std::map<std::string, std::string> strings;

  // "qwen3 q4_K+q6_K 2x256 tied …": what a failed test shows, and a key for caches.
  std::string Describe() const;
};

// A folder that goes with its contents at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Writes the file. The weights are random, scaled so that attention picks few positions, logits
// are peaked and greedy output does not run in circles.
void WriteTinyGguf(const TinyModel& model, const std::filesystem::path& path);

// Writes it into a temporary folder of this process, once, and says where.
std::filesystem::path TinyGgufPath(const TinyModel& model);

// The model, loaded once per process and kept.
const Model& LoadTiny(const TinyModel& model);

// The contents of a file of random networks for kvzap.
std::string TinyPredictor(const ModelParams& params, unsigned seed = 1);

}  // namespace vericache
