#include "compressor/snapkv.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "compressor/window_attention.h"

namespace vericache {

SnapKv::SnapKv(MethodOptions& options)
    : window_(options.Integer("window", kWindow, 1, 256)),
      kernel_(options.Integer("kernel", kKernel, 1, 4095)) {
  if (kernel_ % 2 == 0) {
    throw UserError("the option kernel of snapkv is odd, not " + std::to_string(kernel_));
  }
}

LayerScores SnapKv::Scores(const PromptView& prompt, LayerId layer) const {
  const int window = std::min(window_, prompt.positions);
  const int before = prompt.positions - window;
  LayerScores result = WindowAttention(prompt, layer, before, window, before);
  for (std::vector<float>& scores : result) {
    scores = AveragePool(scores, kernel_);
    for (int i = before; i < prompt.positions; ++i) {
      scores.push_back(kSurelyKept + static_cast<float>(i));
    }
  }
  return result;
}

}  // namespace vericache
