#include "model/params.h"

#include <array>
#include <cmath>
#include <string_view>

#include "attention/kernel.h"
#include "base/error.h"

namespace vericache {
namespace {

constexpr std::array<std::string_view, 3> kArchitectures = {"llama", "qwen2", "qwen3"};

class Reader {
 public:
  Reader(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  [[noreturn]] void Refuse(const std::string& what) const {
    throw UserError(file_.path().string() + ": " + what);
  }

  int Need(const std::string& key) const {
    const auto value = file_.Integer(prefix_ + key);
    if (!value) {
      Refuse("metadata " + prefix_ + key + " is missing");
    }
    return Bounded(key, *value);
  }
  int Get(const std::string& key, int otherwise) const {
    const auto value = file_.Integer(prefix_ + key);
    return value ? Bounded(key, *value) : otherwise;
  }
  float Real(const std::string& key, float otherwise) const {
    return static_cast<float>(file_.Real(prefix_ + key).value_or(otherwise));
  }
  std::string String(const std::string& key, const std::string& otherwise) const {
    return file_.String(prefix_ + key).value_or(otherwise);
  }

 private:
  int Bounded(const std::string& key, std::int64_t value) const {
    if (value < 0 || value > (1 << 28)) {
      Refuse("metadata " + prefix_ + key + " = " + std::to_string(value) + " makes no sense");
    }
    return static_cast<int>(value);
  }

  const GgufFile& file_;
  std::string prefix_;
};

// As libllama reads it (llama-model.cpp, llama-context.cpp), so that the same file means the same.
RopeParams ReadRope(const Reader& reader, const ModelParams& params) {
  RopeParams rope;
  rope.dims = reader.Get("rope.dimension_count", params.head_dim);
  rope.neox = params.architecture != "llama";
  rope.original_context = reader.Get("rope.scaling.original_context_length", params.context);
  rope.base = reader.Real("rope.freq_base", 10000.0F);
  const float factor = reader.Real("rope.scaling.factor", reader.Real("rope.scale_linear", 0.0F));
  rope.scale = factor == 0.0F ? 1.0F : 1.0F / factor;
  const std::string type = reader.String("rope.scaling.type", "linear");
  if (type == "none") {
    rope.scale = 1.0F;
  } else if (type == "yarn") {
    // ggml multiplies by the YaRN magnitude 1 + 0.1 ln(factor) itself (Peng et al. 2023, arXiv
    // 2309.00071, eq. 22), so the attention factor is what the file adds to it.
    rope.extrapolation = 1.0F;
  } else if (type != "linear") {
    reader.Refuse("RoPE scaling '" + type + "' is not supported (linear, yarn, none are)");
  }
  rope.attention = reader.Real("rope.scaling.attn_factor", 1.0F);
  if (rope.dims < 2 || rope.dims % 2 != 0 || rope.dims > params.head_dim) {
    reader.Refuse("RoPE over " + std::to_string(rope.dims) + " of " +
                  std::to_string(params.head_dim) + " dimensions makes no sense");
  }
  if (!(rope.base > 0.0F) || !std::isfinite(rope.base) || !std::isfinite(rope.scale) ||
      !std::isfinite(rope.attention)) {
    reader.Refuse("the RoPE frequencies make no sense");
  }
  return rope;
}

}  // namespace

ModelParams ReadParams(const GgufFile& file) {
  ModelParams params;
  params.architecture = file.String("general.architecture").value_or("");
  const Reader reader(file, params.architecture);
  bool known = false;
  for (const std::string_view name : kArchitectures) {
    known = known || params.architecture == name;
  }
  if (!known) {
    reader.Refuse("architecture '" + params.architecture +
                  "' is not supported (llama, qwen2 and qwen3 are)");
  }
  if (reader.Get("expert_count", 0) > 0) {
    reader.Refuse("a mixture of experts is not supported");
  }
  if (reader.Get("attention.causal", 1) == 0) {
    reader.Refuse("attention that is not causal is not supported");
  }
  if (reader.Get("attention.sliding_window", 0) > 0) {
    reader.Refuse("a sliding window is not supported");
  }
  params.name = file.String("general.name").value_or(file.path().stem().string());
  params.layers = reader.Need("block_count");
  params.embedding = reader.Need("embedding_length");
  params.heads = reader.Need("attention.head_count");
  params.kv_heads = reader.Get("attention.head_count_kv", params.heads);
  params.feed_forward = reader.Need("feed_forward_length");
  params.context = reader.Need("context_length");
  params.rms_epsilon = reader.Real("attention.layer_norm_rms_epsilon", 1e-5F);
  if (!(params.rms_epsilon >= 0.0F) || !std::isfinite(params.rms_epsilon)) {
    reader.Refuse("attention.layer_norm_rms_epsilon makes no sense");
  }
  if (params.layers == 0 || params.heads == 0 || params.kv_heads == 0 || params.embedding == 0 ||
      params.context == 0 || params.heads % params.kv_heads != 0) {
    reader.Refuse("the model's shape makes no sense (" + std::to_string(params.layers) +
                  " layers, " + std::to_string(params.heads) + " heads, " +
                  std::to_string(params.kv_heads) + " KV heads)");
  }
  params.head_dim = reader.Get("attention.key_length", params.embedding / params.heads);
  if (reader.Get("attention.value_length", params.head_dim) != params.head_dim) {
    reader.Refuse("keys and values of different sizes are not supported");
  }
  if (params.head_dim % 16 != 0 || params.head_dim == 0) {
    reader.Refuse("head size " + std::to_string(params.head_dim) +
                  " is not supported (a multiple of 16 is)");
  }
  if (params.heads / params.kv_heads > kMaxQueryBlock) {
    reader.Refuse(std::to_string(params.heads / params.kv_heads) +
                  " query heads per KV head are not supported (up to " +
                  std::to_string(kMaxQueryBlock) + " are)");
  }
  const GgufFile::Tensor* embedding = file.Find("token_embd.weight");
  if (embedding == nullptr) {
    reader.Refuse("tensor token_embd.weight is missing");
  }
  params.vocabulary = static_cast<int>(embedding->shape[1]);
  const std::int64_t texts = file.ArraySize("tokenizer.ggml.tokens").value_or(0);
  if (texts > params.vocabulary) {
    reader.Refuse("the vocabulary has " + std::to_string(texts) + " tokens, the embedding " +
                  std::to_string(params.vocabulary));
  }
  params.rope = ReadRope(reader, params);
  return params;
}

}  // namespace vericache
