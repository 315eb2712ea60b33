#include "compressor/streamingllm.h"

#include <algorithm>

namespace vericache {

LayerScores StreamingLlm::Scores(const PromptView& prompt, LayerId /*layer*/) const {
  std::vector<float> scores(static_cast<std::size_t>(prompt.positions));
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>(i);
  }
  for (int i = 0; i < std::min(sinks_, prompt.positions); ++i) {
    scores[static_cast<std::size_t>(i)] = kSurelyKept + static_cast<float>(sinks_ - i);
  }
  // A budget of hardly more than the sinks still keeps the most recent position.
  scores.back() = kSurelyKept + static_cast<float>(sinks_ + 1);
  return LayerScores(static_cast<std::size_t>(prompt.full.geometry().kv_heads), scores);
}

}  // namespace vericache
