#pragma once

#include <algorithm>

#include "compressor/compressor.h"
#include "compressor/options.h"

namespace vericache {

// KVzap (Jegou and Jeblick 2026; KVzapPress of github.com/NVIDIA/kvpress): a small network in each
// layer tells from the hidden states what KVzip would score, while the prompt is computed and while
// the text grows. The network is one that `vericache train kvzap` made (model/score_predictor.h).
// Each layer keeps as many positions as the others, and each of its heads, by rank (the authors:
// all scores above a threshold, which gives each head a number of its own).
class KvZap final : public TokenScorer {
 public:
  static constexpr int kSinks = 4;     // n_sink of the KVzip that it learned from
  static constexpr int kRecent = 128;  // the authors' sliding window, which is always kept

  // Options: recent, last positions that are surely kept, but at most half of all that are kept;
  // network, the file (default: the one beside the model).
  explicit KvZap(MethodOptions& options)
      : recent_(options.Integer("recent", kRecent, 0, 1 << 16)),
        network_(options.Text("network", "")) {}

  std::optional<std::string> network() const override { return network_; }
  int recent(int count) const override { return std::min(recent_, count / 2); }
  LayerScores Scores(const PromptView& prompt, LayerId layer) const override;

 private:
  int recent_;
  std::string network_;
};

}  // namespace vericache
