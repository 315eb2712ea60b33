#pragma once

#include "compressor/compressor.h"
#include "compressor/options.h"

namespace vericache {

// ExpectedAttention (Devoto et al. 2025, arXiv 2510.00636; ExpectedAttentionPress of
// github.com/NVIDIA/kvpress): what queries to come will attend to. Before RoPE they are taken to be
// normal, with the mean and covariance of the prompt's own; RoPE is averaged over the positions
// that follow; the expected weight exp(q k / sqrt(d)) then has a closed form.
class ExpectedAttention final : public TokenScorer {
 public:
  static constexpr int kFuture = 512;      // n_future_positions in kvpress
  static constexpr double kEpsilon = 0.0;  // epsilon there
  static constexpr int kSinks = QueryStatistics::kSkipped;

  // Options: future, positions to come; epsilon, of attention, added before it is multiplied by the
  // length of the value; recent, last positions that are surely kept (kvpress: none).
  explicit ExpectedAttention(MethodOptions& options);

  TapNeeds needs() const override { return {.query_statistics = true}; }
  int future_positions() const override { return future_; }
  int recent(int /*count*/) const override { return recent_; }

  // (softmax(mean k / sqrt(d) + k covariance k / 2d) + epsilon) |v|, the softmax per query head
  // over the positions after the sinks, averaged over the query heads of a KV head. The sinks are
  // surely kept.
  LayerScores Scores(const PromptView& prompt, LayerId layer) const override;

 private:
  int future_;
  float epsilon_;
  int recent_;
};

}  // namespace vericache
