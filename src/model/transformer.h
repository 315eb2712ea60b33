#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/batch_attention.h"
#include "base/types.h"
#include "ggml-alloc.h"
#include "model/backend.h"
#include "model/model.h"

namespace vericache {

// The rows of one iteration.
struct RowBatch {
  std::span<const TokenId> tokens;
  std::span<const Position> positions;  // one per token
  // Rows whose logits are wanted, ascending.
  std::span<const int> outputs;
  std::span<const AttentionTask> tasks;  // cover all rows, in order
  // True where a row's result is emitted or stored: products then follow the exact rules. Drafts
  // alone may do without.
  bool exact = true;
};

// Runs iterations: one ggml graph over all rows.
class Transformer {
 public:
  // `model` must outlive it. Throws UserError where VERICACHE_ISA names an unknown kernel.
  Transformer(const Model& model, int threads);

  // The logits of batch.outputs, [output][vocabulary]; valid until the next call. Appends the keys
  // and values of all rows to their caches. Throws UserError where memory does not suffice, and
  // Interrupted where `stop` said so in between; the caches then hold unwritten slots.
  std::span<const float> Forward(const RowBatch& batch);

  // As BatchAttention::seconds.
  std::array<double, kAttentionUses> attention_seconds() const { return attention_.seconds(); }

  // Bytes that Forward takes besides weights and caches, for up to `rows` rows of which `outputs`
  // give logits.
  Bytes WorkBytes(int rows, int outputs);

  // Asked between the nodes of a graph, from ggml's threads.
  void SetStop(std::function<bool()> stop) { backend_.SetStop(std::move(stop)); }

  const Model& model() const { return model_; }
  int threads() const { return backend_.threads(); }

 private:
  struct LayerOp {
    BatchAttention* attention;
    LayerId layer;
  };
  struct FreeAllocator {
    void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
  };
  using Allocator = std::unique_ptr<ggml_gallocr, FreeAllocator>;
  class Builder;

  const Model& model_;
  Backend backend_;
  BatchAttention attention_;
  std::vector<LayerOp> layer_ops_;
  std::vector<std::byte> graph_memory_;
  Allocator allocator_;
  std::vector<float> logits_;
};

}  // namespace vericache
