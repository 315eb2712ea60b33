#pragma once

#include "compressor/compressor.h"
#include "compressor/options.h"

namespace vericache {

// KVzip (Kim et al. 2025, arXiv 2505.23416; github.com/snu-mllab/KVzip, and KVzipPress of
// github.com/NVIDIA/kvpress): the largest attention that each position gets while the model repeats
// the text, over the queries and the query heads of a KV head. Each layer keeps as many positions
// as the others, and each of its heads (the authors' default compares scores of all layers and
// heads).
class KvZip final : public TokenScorer {
 public:
  static constexpr int kChunk = 2048;  // tokens repeated at once, in the authors' code
  static constexpr int kSinks = 4;     // n_sink in kvpress
  static constexpr int kRecent = 32;   // the authors: none; drafts continue what was read last

  // Options: chunk; recent, last positions that are surely kept, after the sinks.
  explicit KvZip(MethodOptions& options)
      : chunk_(options.Integer("chunk", kChunk, 16, 1 << 16)),
        recent_(options.Integer("recent", kRecent, 0, 1 << 16)) {}

  TapNeeds needs() const override { return {.repeated_chunk = chunk_}; }
  int recent(int /*count*/) const override { return recent_; }
  LayerScores Scores(const PromptView& prompt, LayerId layer) const override;

 private:
  int chunk_;
  int recent_;
};

}  // namespace vericache
