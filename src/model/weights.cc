#include "model/weights.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "ggml-cpu.h"
#include "model/tensor_reader.h"

namespace vericache {
// Declares tensors in the stores that they belong to and keeps book of those that were asked for.
class Weights::Declarer {
 public:
  // Matrices are declared in the given form, as far as their rows allow it.
  Declarer(const GgufFile& file, const WeightForm& form, std::vector<Store>& stores)
      : file_(file), form_(form), stores_(stores) {}

  // `looked_up`: single rows of the matrix are read, too, hence it is not packed.
  ggml_tensor* Optional(const std::string& name, std::vector<std::int64_t> shape,
                        bool looked_up = false) {
    const GgufFile::Tensor* tensor = file_.Find(name);
    if (tensor == nullptr) {
      return nullptr;
    }
    shape.resize(GGML_MAX_DIMS, 1);
    if (tensor->shape != shape) {
      Fail("tensor " + name + " has the shape " + Shape(tensor->shape) + " instead of " +
           Shape(shape));
    }
    // Vectors are added or multiplied with as they are, matrices by ggml's dot products.
    const bool vector = shape[1] == 1;
    if (vector ? tensor->type != GGML_TYPE_F32
               : ggml_get_type_traits_cpu(tensor->type)->vec_dot == nullptr) {
      Fail("tensor " + name + " has the type " + ggml_type_name(tensor->type) +
           (vector ? "; only f32 is supported here" : ", which ggml does not multiply with"));
    }
    declared_.insert(name);
    const bool converts = form_.as && !vector && shape[0] % ggml_blck_size(*form_.as) == 0;
    const ggml_type type = converts ? *form_.as : tensor->type;
    const bool packs = form_.packed && !vector && !looked_up;
    ggml_tensor* made = ggml_new_tensor(
        ContextOf(packs ? PackingFor(type, shape[0], shape[1]) : ggml_backend_cpu_buffer_type()),
        type, GGML_MAX_DIMS, shape.data());
    ggml_set_name(made, name.c_str());
    return made;
  }

  ggml_tensor* Need(const std::string& name, std::vector<std::int64_t> shape,
                    bool looked_up = false) {
    ggml_tensor* made = Optional(name, std::move(shape), looked_up);
    if (made == nullptr) {
      Fail("tensor " + name + " is missing");
    }
    return made;
  }

  LinearWeights Linear(const std::string& name, std::int64_t in, std::int64_t out) {
    return {.weight = Need(name + ".weight", {in, out}), .bias = Optional(name + ".bias", {out})};
  }

  void RefuseUnknown() const {
    for (const GgufFile::Tensor& tensor : file_.tensors()) {
      if (!declared_.contains(tensor.name)) {
        Fail("tensor " + tensor.name + " is not known for this architecture");
      }
    }
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw UserError(file_.path().string() + ": " + what);
  }
  static std::string Shape(const std::vector<std::int64_t>& shape) {
    std::string text;
    for (std::size_t i = 0; i < 2; ++i) {
      text += (i == 0 ? "" : " x ") + std::to_string(shape[i]);
    }
    return text;
  }

  ggml_context* ContextOf(ggml_backend_buffer_type_t buffers) {
    const auto found = std::ranges::find(stores_, buffers, &Store::buffers);
    if (found != stores_.end()) {
      return found->context.get();
    }
    // Of every tensor, and of a twin.
    const std::size_t size = ggml_tensor_overhead() * (file_.tensors().size() + 1);
    GgmlContext context(ggml_init({.mem_size = size, .mem_buffer = nullptr, .no_alloc = true}));
    return stores_.emplace_back(buffers, std::move(context), nullptr).context.get();
  }

  const GgufFile& file_;
  WeightForm form_;
  std::vector<Store>& stores_;
  std::set<std::string> declared_;
};

MatrixKind KindOf(const ggml_tensor* matrix) {
  return {.type = matrix->type, .packed = !ggml_backend_buffer_is_host(matrix->buffer)};
}

Weights::Weights(const GgufFile& file, const ModelParams& params, const WeightForm& form,
                 int threads) {
  Declarer declare(file, form, stores_);
  const std::int64_t embedding = params.embedding;
  const std::int64_t query = static_cast<std::int64_t>(params.heads) * params.head_dim;
  const std::int64_t key = static_cast<std::int64_t>(params.kv_heads) * params.head_dim;
  token_embedding_ = declare.Need("token_embd.weight", {embedding, params.vocabulary}, true);
  output_norm_ = declare.Need("output_norm.weight", {embedding});
  output_ = declare.Optional("output.weight", {embedding, params.vocabulary});
  if (output_ == nullptr) {
    output_ = form.packed ? declare.Need("token_embd.weight", {embedding, params.vocabulary})
                          : token_embedding_;
  }
  if (params.architecture == "llama") {
    rope_factors_ = declare.Optional("rope_freqs.weight", {params.rope.dims / 2});
  }
  for (int i = 0; i < params.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    LayerWeights layer;
    layer.attention_norm = declare.Need(block + "attn_norm.weight", {embedding});
    layer.query = declare.Linear(block + "attn_q", embedding, query);
    layer.key = declare.Linear(block + "attn_k", embedding, key);
    layer.value = declare.Linear(block + "attn_v", embedding, key);
    layer.output = declare.Linear(block + "attn_output", query, embedding);
    if (params.architecture == "qwen3") {
      layer.query_norm = declare.Need(block + "attn_q_norm.weight", {params.head_dim});
      layer.key_norm = declare.Need(block + "attn_k_norm.weight", {params.head_dim});
    }
    layer.feed_forward_norm = declare.Need(block + "ffn_norm.weight", {embedding});
    layer.gate = declare.Linear(block + "ffn_gate", embedding, params.feed_forward);
    layer.up = declare.Linear(block + "ffn_up", embedding, params.feed_forward);
    layer.down = declare.Linear(block + "ffn_down", params.feed_forward, embedding);
    layers_.push_back(layer);
  }
  declare.RefuseUnknown();

  Bytes needed;
  std::vector<ggml_tensor*> all;
  for (const Store& store : stores_) {
    for (ggml_tensor* tensor = ggml_get_first_tensor(store.context.get()); tensor != nullptr;
         tensor = ggml_get_next_tensor(store.context.get(), tensor)) {
      needed += Bytes{ggml_backend_buft_get_alloc_size(store.buffers, tensor)};
      all.push_back(tensor);
    }
  }
  RequireMemory(needed, "the weights of " + file.path().string());
  for (Store& store : stores_) {
    store.buffer.reset(
        ggml_backend_alloc_ctx_tensors_from_buft(store.context.get(), store.buffers));
    if (!store.buffer) {
      throw UserError("no memory for the weights of " + file.path().string() + ": " +
                      HumanBytes(needed) + " are needed");
    }
  }
  ReadTensors(file, all, threads);
}

std::vector<ggml_tensor*> Weights::matrices() const {
  std::vector<ggml_tensor*> all = {output_};
  for (const LayerWeights& layer : layers_) {
    for (const LinearWeights* linear : {&layer.query, &layer.key, &layer.value, &layer.output,
                                        &layer.gate, &layer.up, &layer.down}) {
      all.push_back(linear->weight);
    }
  }
  return all;
}

Bytes Weights::bytes() const {
  Bytes sum;
  for (const Store& store : stores_) {
    sum += Bytes{ggml_backend_buffer_get_size(store.buffer.get())};
  }
  return sum;
}

}  // namespace vericache
