// The chain of samplers: from the logits to the tokens that may be picked.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "base/types.h"
#include "sampling/sampler.h"

namespace vericache {

struct Candidate {
  TokenId token{};
  double logit = 0.0;  // over the temperature
};

// Of two candidates the one of the larger logit, or of equals the one of the lower token.
inline bool Better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The largest of `values`; NaNs count as the smallest.
float Largest(std::span<const float> values);

// The token of the largest logit, the lowest one among equals.
TokenId Greedy(std::span<const float> logits);

// Whether `options` leave anything to chance: not at temperature 0, nor where a logit is infinite.
inline bool LeavesAChoice(std::span<const float> logits, const SamplingOptions& options) {
  return options.temperature > 0.0 && std::isfinite(Largest(logits));
}

// The logits less the penalties of what was emitted: logits - presence - frequency * times. Empty
// where there are no penalties.
std::vector<float> Penalized(std::span<const float> logits, const SamplingOptions& options,
                             const EmittedTokens& before);

// The candidates that the temperature, then top_k, top_p and min_p leave, in no order; those that
// are more than `range` nats below the best one are left out too. The temperature is above 0, the
// largest logit finite.
std::vector<Candidate> Candidates(std::span<const float> logits, const SamplingOptions& options,
                                  double range);

}  // namespace vericache
