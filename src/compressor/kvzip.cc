#include "compressor/kvzip.h"

#include <algorithm>

namespace vericache {

LayerScores KvZip::Scores(const PromptView& prompt, LayerId layer) const {
  LayerScores result;
  for (int head = 0; head < prompt.full.geometry().kv_heads; ++head) {
    std::vector<float>& scores = result.emplace_back(prompt.taps->repeated->weights(layer, head));
    for (int i = 0; i < std::min(kSinks, prompt.positions); ++i) {
      scores[static_cast<std::size_t>(i)] =
          kSurelyKept + static_cast<float>(prompt.positions + kSinks - i);
    }
  }
  return result;
}

}  // namespace vericache
