#pragma once

#include "compressor/compressor.h"
#include "compressor/options.h"

namespace vericache {

// H2O (Zhang et al. 2023, arXiv 2306.14048; github.com/FMInference/H2O): the heavy hitters, to
// which all queries so far attended most in sum, and the most recent positions, half of the budget
// each. Online: verified queries add to the sums, and each verify selects anew. Sums are over the
// query heads of a KV head. Unlike the authors' cache, the full one still has what was evicted, so
// a position may come back.
class H2o final : public TokenScorer {
 public:
  static constexpr double kRecent = 0.5;  // heavy and recent ratio are equal in the authors' code

  // Options: recent, share of the kept positions that are the most recent ones.
  explicit H2o(MethodOptions& options) : recent_(options.Number("recent", kRecent, 0.0, 1.0)) {}

  // More verified queries than that, of rounds that the engine had without drafts, are passed over.
  static constexpr int kQueries = 64;

  TapNeeds needs() const override { return {.attention_sums = true, .verified_window = kQueries}; }
  int recent(int count) const override { return static_cast<int>(recent_ * count); }
  bool accumulates() const override { return true; }
  LayerScores Scores(const PromptView& prompt, LayerId layer) const override;

 private:
  double recent_;
};

}  // namespace vericache
