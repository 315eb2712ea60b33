#include "compressor/h2o.h"

namespace vericache {

LayerScores H2o::Scores(const PromptView& prompt, LayerId layer) const {
  const CacheGeometry& geometry = prompt.full.geometry();
  const int group = prompt.heads / geometry.kv_heads;
  LayerScores scores;
  for (int head = 0; head < geometry.kv_heads; ++head) {
    std::vector<float>& sums = scores.emplace_back(prompt.taps->attention->weights(layer, head));
    for (float& sum : sums) {
      sum /= static_cast<float>(group);
    }
  }
  return scores;
}

}  // namespace vericache
