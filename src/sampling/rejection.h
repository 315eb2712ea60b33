// Rejection sampling of drafts (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1; Chen et al.
// 2023, arXiv 2302.01318, theorem 1): what is emitted has the verifier's distribution, whatever the
// drafter's.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "sampling/sampler.h"

namespace vericache {

struct TokenProbability {
  TokenId token{};
  double probability = 0.0;

  bool operator==(const TokenProbability&) const = default;
};

// Probabilities above 0 that sum to 1, by ascending token; never empty.
using Distribution = std::vector<TokenProbability>;

// What the chain of samplers makes of `logits` after `before`. Tokens that are more than `range`
// nats below the best one are left out.
Distribution DistributionOf(std::span<const float> logits, const SamplingOptions& options,
                            const EmittedTokens& before, double range);

// 0 where it has none.
double ProbabilityOf(const Distribution& distribution, TokenId token);

// The token at `uniform`, in (0, 1), of the cumulative distribution.
TokenId Pick(const Distribution& distribution, double uniform);

// The token that follows where `drafted`, drawn from `drafter`, was proposed: itself, with
// probability min(1, verifier(drafted) / drafter(drafted)); otherwise another one, drawn from
// max(0, verifier - drafter) over its sum. `accept` and `pick`, in (0, 1), are drawn independently.
TokenId PickVerified(const Distribution& verifier, const Distribution& drafter, TokenId drafted,
                     double accept, double pick);

}  // namespace vericache
