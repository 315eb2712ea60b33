#include "compressor/streamingllm.h"

#include <algorithm>

namespace vericache {

LayerSelection StreamingLlm::Select(const PromptView& prompt, LayerId /*layer*/, int count) const {
  std::vector<int> kept(static_cast<std::size_t>(count));
  // A budget of hardly more than the sinks still keeps the most recent position.
  const int sinks = std::min(sinks_, count - 1);
  for (int i = 0; i < count; ++i) {
    kept[static_cast<std::size_t>(i)] = i < sinks ? i : prompt.positions - count + i;
  }
  return LayerSelection(static_cast<std::size_t>(prompt.full.geometry().kv_heads), kept);
}

}  // namespace vericache
