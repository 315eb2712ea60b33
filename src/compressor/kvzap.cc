#include "compressor/kvzap.h"

#include <span>

namespace vericache {

LayerScores KvZap::Scores(const PromptView& prompt, LayerId layer) const {
  LayerScores result;
  for (int head = 0; head < prompt.full.geometry().kv_heads; ++head) {
    const std::span<const float> predicted =
        prompt.taps->predicted->of(layer, head, prompt.positions);
    std::vector<float>& scores = result.emplace_back(predicted.begin(), predicted.end());
    for (int i = 0; i < std::min(kSinks, prompt.positions); ++i) {
      scores[static_cast<std::size_t>(i)] =
          kSurelyKept + static_cast<float>(prompt.positions + kSinks - i);
    }
  }
  return result;
}

}  // namespace vericache
