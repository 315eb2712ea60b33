#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "sampling/candidates.h"
#include "sampling/noise.h"

namespace vericache {
void ValidateSampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0.0 && options.temperature <= 100.0)) {
    throw UserError("the temperature must be from 0 to 100");
  }
  if (options.top_k < 0) {
    throw UserError("top_k must not be negative; 0 keeps all tokens");
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw UserError("top_p must be above 0 and at most 1");
  }
  if (!(options.min_p >= 0.0 && options.min_p <= 1.0)) {
    throw UserError("min_p must be from 0 to 1");
  }
  for (const double penalty : {options.presence_penalty, options.frequency_penalty}) {
    if (!(penalty >= -2.0 && penalty <= 2.0)) {
      throw UserError("presence and frequency penalties must be from -2 to 2");
    }
  }
}

TokenId Sampler::Sample(std::span<const float> logits, Position position,
                        const EmittedTokens& before) const {
  const std::vector<float> penalized = Penalized(logits, options_, before);
  logits = penalized.empty() ? logits : penalized;
  if (!LeavesAChoice(logits, options_)) {
    return Greedy(logits);
  }
  const std::uint64_t key = NoiseKey(options_.seed, {static_cast<std::uint64_t>(Raw(position))});
  const std::vector<Candidate> candidates = Candidates(logits, options_, kNoiseRange);
  Candidate best{candidates.front().token, -std::numeric_limits<double>::infinity()};
  for (const Candidate& each : candidates) {
    const Candidate noisy{each.token, each.logit + GumbelNoise(key, each.token)};
    if (Better(noisy, best)) {
      best = noisy;
    }
  }
  return best.token;
}

float Margin(std::span<const float> logits, TokenId token) {
  const auto at = static_cast<std::size_t>(Raw(token));
  return logits[at] - std::max(Largest(logits.first(at)), Largest(logits.subspan(at + 1)));
}

}  // namespace vericache
