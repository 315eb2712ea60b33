#include "compressor/kvzap.h"

#include <span>

namespace vericache {

LayerScores KvZap::Scores(const PromptView& prompt, LayerId layer) const {
  LayerScores result;
  for (int head = 0; head < prompt.full.geometry().kv_heads; ++head) {
    const std::span<const float> predicted =
        prompt.taps->predicted->of(layer, head, prompt.positions);
    result.emplace_back(predicted.begin(), predicted.end());
  }
  KeepSinks(result, kSinks);
  return result;
}

}  // namespace vericache
