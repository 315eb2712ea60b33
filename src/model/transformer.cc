#include "model/transformer.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "model/rope.h"
#include "model/score_predictor.h"

namespace vericache {
namespace {

// Nodes of a graph: about twenty-five a layer, a few more with biases and padding.
constexpr std::size_t kNodesPerLayer = 64;

}  // namespace

// Builds the graph of one iteration.
class Transformer::Builder {
 public:
  Builder(Transformer& owner, const RowBatch& batch)
      : params_(owner.model_.params()),
        weights_(owner.model_.weights()),
        rules_(owner.model_.rules()),
        batch_(batch),
        layer_ops_(owner.layer_ops_) {
    context_.reset(ggml_init({.mem_size = owner.graph_memory_.size(),
                              .mem_buffer = owner.graph_memory_.data(),
                              .no_alloc = true}));
    graph_ = ggml_new_graph_custom(context_.get(), kNodesPerLayer * (layer_ops_.size() + 1),
                                   /*grads=*/false);
    const auto rows = static_cast<std::int64_t>(batch.tokens.size());
    tokens_ = Input(rows);
    positions_ = Input(rows);
    if (!batch.outputs.empty()) {
      outputs_ = Input(static_cast<std::int64_t>(batch.outputs.size()));
    }
    Build();
  }

  ggml_cgraph* graph() const { return graph_; }
  ggml_tensor* logits() const { return logits_; }

  void SetInputs() const {
    Set(tokens_, batch_.tokens.data());
    Set(positions_, batch_.positions.data());
    if (outputs_ != nullptr) {
      Set(outputs_, batch_.outputs.data());
    }
  }

 private:
  ggml_tensor* Input(std::int64_t count) {
    ggml_tensor* tensor = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I32, count);
    ggml_set_input(tensor);
    return tensor;
  }

  static void Set(ggml_tensor* tensor, const void* values) {
    if (tensor->buffer != nullptr) {  // nullptr where nothing in the graph reads it
      ggml_backend_tensor_set(tensor, values, 0, ggml_nbytes(tensor));
    }
  }

  ggml_tensor* Norm(ggml_tensor* x, ggml_tensor* weight) {
    return ggml_mul(context_.get(), ggml_rms_norm(context_.get(), x, params_.rms_epsilon), weight);
  }

  ggml_tensor* Linear(const LinearWeights& linear, ggml_tensor* x) {
    const RowRule rule = batch_.exact ? rules_.at(KindOf(linear.weight)) : RowRule{};
    return MultiplyRows(context_.get(), linear, x, rule);
  }

  // x as [head_dim, heads, rows].
  ggml_tensor* Heads(ggml_tensor* x, int heads) {
    return ggml_reshape_3d(context_.get(), x, params_.head_dim, heads, x->ne[1]);
  }

  ggml_tensor* Rope(ggml_tensor* x) {
    return Rotate(context_.get(), x, positions_, params_.rope, weights_.rope_factors());
  }

  // Hands rows of numbers to the taps that want them, after `before` was computed.
  template <void (BatchAttention::*kRecord)(LayerId, const float*, int, int)>
  void Record(LayerOp& op, ggml_tensor* rows, ggml_tensor* before = nullptr) {
    std::array<ggml_tensor*, 2> inputs = {rows, before};
    ggml_build_forward_expand(
        graph_,
        ggml_custom_4d(
            context_.get(), GGML_TYPE_F32, 1, 1, 1, 1, inputs.data(), before == nullptr ? 1 : 2,
            [](ggml_tensor* dst, int thread, int threads, void* user) {
              const auto& self = *static_cast<LayerOp*>(user);
              (self.attention->*kRecord)(self.layer, static_cast<const float*>(dst->src[0]->data),
                                         thread, threads);
            },
            GGML_N_TASKS_MAX, &op));
  }

  // Attention of a layer over the caches: nullptr where `wanted` is false, which still appends.
  ggml_tensor* Attention(LayerOp& op, ggml_tensor* query, ggml_tensor* key, ggml_tensor* value,
                         bool wanted) {
    std::array<ggml_tensor*, 3> inputs = {query, key, value};
    ggml_tensor* appended = ggml_custom_4d(
        context_.get(), GGML_TYPE_F32, 1, 1, 1, 1, inputs.data(), inputs.size(),
        [](ggml_tensor* dst, int thread, int threads, void* user) {
          const auto& self = *static_cast<LayerOp*>(user);
          self.attention->Append(self.layer, static_cast<const float*>(dst->src[0]->data),
                                 static_cast<const float*>(dst->src[1]->data),
                                 static_cast<const float*>(dst->src[2]->data), thread, threads);
        },
        GGML_N_TASKS_MAX, &op);
    ggml_build_forward_expand(graph_, appended);
    if (op.attention->WantsAttention()) {
      Record<&BatchAttention::RecordAttention>(op, query, appended);
    }
    if (!wanted) {
      return nullptr;
    }
    std::array<ggml_tensor*, 2> attend = {query, appended};
    return ggml_custom_4d(
        context_.get(), GGML_TYPE_F32, query->ne[0] * query->ne[1], query->ne[2], 1, 1,
        attend.data(), attend.size(),
        [](ggml_tensor* dst, int thread, int threads, void* user) {
          const auto& self = *static_cast<LayerOp*>(user);
          self.attention->Attend(self.layer, static_cast<const float*>(dst->src[0]->data),
                                 static_cast<float*>(dst->data), thread, threads);
        },
        GGML_N_TASKS_MAX, &op);
  }

  void Build() {
    ggml_context* c = context_.get();
    ggml_tensor* x = ggml_get_rows(c, weights_.token_embedding(), tokens_);
    for (std::size_t i = 0; i < layer_ops_.size(); ++i) {
      const LayerWeights& layer = weights_.layers()[i];
      const bool last = i + 1 == layer_ops_.size();
      ggml_tensor* normed = Norm(x, layer.attention_norm);
      ggml_tensor* query = Heads(Linear(layer.query, normed), params_.heads);
      ggml_tensor* key = Heads(Linear(layer.key, normed), params_.kv_heads);
      ggml_tensor* value = Heads(Linear(layer.value, normed), params_.kv_heads);
      if (layer.query_norm != nullptr) {
        query = Norm(query, layer.query_norm);
        key = Norm(key, layer.key_norm);
      }
      const BatchAttention& attention = *layer_ops_[i].attention;
      if (attention.WantsHidden()) {
        Record<&BatchAttention::RecordHidden>(layer_ops_[i], normed);
      }
      if (const ScorePredictor* predictor = attention.predictor()) {
        Record<&BatchAttention::RecordPredicted>(layer_ops_[i],
                                                 predictor->Scores(c, static_cast<int>(i), normed));
      }
      if (attention.WantsUnrotated()) {
        Record<&BatchAttention::RecordUnrotated>(layer_ops_[i], query);
      }
      ggml_tensor* attended = Attention(layer_ops_[i], Rope(query), Rope(key), value,
                                        /*wanted=*/!last || outputs_ != nullptr);
      if (attended == nullptr) {
        return;
      }
      if (last) {  // what follows is needed for the wanted rows alone
        attended = ggml_get_rows(c, attended, outputs_);
        x = ggml_get_rows(c, x, outputs_);
      }
      x = ggml_add(c, Linear(layer.output, attended), x);
      normed = Norm(x, layer.feed_forward_norm);
      ggml_tensor* gated =
          ggml_swiglu_split(c, Linear(layer.gate, normed), Linear(layer.up, normed));
      x = ggml_add(c, Linear(layer.down, gated), x);
    }
    logits_ =
        Linear({.weight = weights_.output(), .bias = nullptr}, Norm(x, weights_.output_norm()));
    ggml_set_output(logits_);
    ggml_build_forward_expand(graph_, logits_);
  }

  const ModelParams& params_;
  const Weights& weights_;
  const ExactRows& rules_;
  const RowBatch& batch_;
  std::vector<LayerOp>& layer_ops_;
  GgmlContext context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* positions_ = nullptr;
  ggml_tensor* outputs_ = nullptr;
  ggml_tensor* logits_ = nullptr;
};

Transformer::Transformer(const Model& model, int threads)
    : model_(model),
      backend_(threads),
      attention_(SelectKernel(), SelectDraftKernel(), model.params().geometry(),
                 model.params().heads, threads) {
  const auto layers = static_cast<std::size_t>(model.params().layers);
  for (std::size_t i = 0; i < layers; ++i) {
    layer_ops_.push_back({.attention = &attention_, .layer = LayerId{static_cast<int>(i)}});
  }
  const std::size_t nodes = kNodesPerLayer * (layers + 1);
  graph_memory_.resize(ggml_tensor_overhead() * nodes + ggml_graph_overhead_custom(nodes, false));
  allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
}

Bytes Transformer::WorkBytes(int rows, int outputs) {
  const std::vector<TokenId> tokens(static_cast<std::size_t>(rows));
  const std::vector<Position> positions(tokens.size());
  const std::vector<int> wanted(static_cast<std::size_t>(outputs));
  const Builder builder(*this,
                        {.tokens = tokens, .positions = positions, .outputs = wanted, .tasks = {}});
  // An allocator of its own, which then believes in buffers that it never got.
  const Allocator planner(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.get())));
  std::size_t size = 0;
  ggml_gallocr_reserve_n_size(planner.get(), builder.graph(), nullptr, nullptr, &size);
  const std::size_t logits = wanted.size() * static_cast<std::size_t>(model_.params().vocabulary);
  return {size + logits * sizeof(float)};
}

std::span<const float> Transformer::Forward(const RowBatch& batch) {
  Check(batch.tokens.size() == batch.positions.size() && !batch.tokens.empty(), "rows");
  attention_.Begin(batch.tasks, static_cast<int>(batch.tokens.size()));
  const Builder builder(*this, batch);
  if (!ggml_gallocr_alloc_graph(allocator_.get(), builder.graph())) {
    throw UserError("too little memory to compute " + std::to_string(batch.tokens.size()) +
                    " rows at once; a smaller --prefill-chunk or --batch needs less");
  }
  builder.SetInputs();
  const ggml_status status = ggml_backend_graph_compute(backend_.get(), builder.graph());
  if (status == GGML_STATUS_ABORTED) {
    throw Interrupted();
  }
  Check(status == GGML_STATUS_SUCCESS, "ggml computes the graph");
  if (builder.logits() == nullptr) {
    return {};
  }
  logits_.resize(static_cast<std::size_t>(ggml_nelements(builder.logits())));
  ggml_backend_tensor_get(builder.logits(), logits_.data(), 0, logits_.size() * sizeof(float));
  return logits_;
}

}  // namespace vericache
