#pragma once

#include "compressor/compressor.h"
#include "compressor/options.h"

namespace vericache {

// StreamingLLM (Xiao et al. 2023, arXiv 2309.17453; github.com/mit-han-lab/streaming-llm): the
// first four positions, the attention sinks, and the most recent ones. Keys keep the rotation of
// their original positions (the authors rotate them anew inside the window, to go beyond the
// trained length; drafts must match the full cache instead).
class StreamingLlm final : public TokenScorer {
 public:
  static constexpr int kSinks = 4;  // start_size in the authors' code

  // Options: sinks.
  explicit StreamingLlm(MethodOptions& options)
      : sinks_(options.Integer("sinks", kSinks, 0, 4096)) {}

  LayerScores Scores(const PromptView& prompt, LayerId layer) const override;

 private:
  int sinks_;
};

}  // namespace vericache
