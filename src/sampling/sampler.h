#pragma once

#include <span>

#include "base/types.h"

namespace vericache {

// The sampler is a deterministic function of the logits and the position, for drafts and verifies
// alike: a draft is accepted where both pick the same token. Greedy: the largest logit, the lowest
// token id among equals. (With temperature, noise keyed by seed, position and token comes in here.)
class Sampler {
 public:
  // The token that follows `position`; `logits` has one entry per token of the vocabulary, NaNs
  // count as the smallest.
  TokenId Sample(std::span<const float> logits, Position position) const;
};

}  // namespace vericache
