#include "compressor/kvzip.h"

namespace vericache {

LayerScores KvZip::Scores(const PromptView& prompt, LayerId layer) const {
  LayerScores result;
  for (int head = 0; head < prompt.full.geometry().kv_heads; ++head) {
    result.push_back(prompt.taps->repeated->weights(layer, head));
  }
  KeepSinks(result, kSinks);
  return result;
}

}  // namespace vericache
