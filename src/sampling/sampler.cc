#include "sampling/sampler.h"

#include <cmath>
#include <limits>

namespace vericache {

TokenId Sampler::Sample(std::span<const float> logits, Position /*position*/) const {
  float best = -std::numeric_limits<float>::infinity();
  std::size_t token = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best) {
      best = logits[i];
      token = i;
    }
  }
  return TokenId{static_cast<std::int32_t>(token)};
}

}  // namespace vericache
