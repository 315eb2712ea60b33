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

// How far the logit of `token` is above every other one's, in nats of odds; below 0 where one is
// larger. `logits` has at least two entries.
float Margin(std::span<const float> logits, TokenId token);

}  // namespace vericache
