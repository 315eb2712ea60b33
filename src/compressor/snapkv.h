#pragma once

#include "compressor/compressor.h"
#include "compressor/options.h"

namespace vericache {

// SnapKV (Li et al. 2024, arXiv 2404.14469; github.com/FasterDecoding/SnapKV): the positions to
// which the prompt's last queries attend, smoothed over neighbours, and the window of those queries
// itself. Scores are averaged over the query heads of a KV head, as kvpress does for grouped
// queries, so that the heads of a layer differ in what they keep but not in how much.
class SnapKv final : public TokenScorer {
 public:
  static constexpr int kWindow = 32;  // window_size in the authors' code
  static constexpr int kKernel = 5;   // kernel_size, average pooling

  // Options: window; kernel, odd.
  explicit SnapKv(MethodOptions& options);

  TapNeeds needs() const override { return {.query_window = window_}; }

  // Before the window: attention of the window's queries (causal within the window), averaged over
  // window and query heads, then average-pooled with zero padding. The window itself is surely
  // kept, the most recent positions first.
  LayerScores Scores(const PromptView& prompt, LayerId layer) const override;

 private:
  int window_;
  int kernel_;
};

}  // namespace vericache
