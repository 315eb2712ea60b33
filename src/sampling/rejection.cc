#include "sampling/rejection.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sampling/candidates.h"

namespace vericache {

Distribution DistributionOf(std::span<const float> logits, const SamplingOptions& options,
                            const EmittedTokens& before, double range) {
  const std::vector<float> penalized = Penalized(logits, options, before);
  logits = penalized.empty() ? logits : penalized;
  if (!LeavesAChoice(logits, options)) {
    return {{Greedy(logits), 1.0}};
  }
  std::vector<Candidate> candidates = Candidates(logits, options, range);
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  const double best =
      std::max_element(candidates.begin(), candidates.end(),
                       [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
          ->logit;
  double sum = 0.0;
  Distribution distribution;
  distribution.reserve(candidates.size());
  for (const Candidate& each : candidates) {
    distribution.push_back({each.token, std::exp(each.logit - best)});
    sum += distribution.back().probability;
  }
  for (TokenProbability& each : distribution) {
    each.probability /= sum;
  }
  return distribution;
}

double ProbabilityOf(const Distribution& distribution, TokenId token) {
  const auto at = std::lower_bound(
      distribution.begin(), distribution.end(), token,
      [](const TokenProbability& each, TokenId wanted) { return each.token < wanted; });
  return at != distribution.end() && at->token == token ? at->probability : 0.0;
}

TokenId Pick(const Distribution& distribution, double uniform) {
  Check(!distribution.empty(), "a distribution has a token at least");
  for (const TokenProbability& each : distribution) {
    uniform -= each.probability;
    if (uniform < 0.0) {
      return each.token;
    }
  }
  return distribution.back().token;  // the sum was a rounding short of 1
}

TokenId PickVerified(const Distribution& verifier, const Distribution& drafter, TokenId drafted,
                     double accept, double pick) {
  if (accept * ProbabilityOf(drafter, drafted) < ProbabilityOf(verifier, drafted)) {
    return drafted;
  }
  Distribution residual;
  double sum = 0.0;
  auto behind = drafter.begin();
  for (const TokenProbability& each : verifier) {
    while (behind != drafter.end() && behind->token < each.token) {
      ++behind;
    }
    const bool both = behind != drafter.end() && behind->token == each.token;
    const double more = each.probability - (both ? behind->probability : 0.0);
    if (more > 0.0) {
      residual.push_back({each.token, more});
      sum += more;
    }
  }
  if (residual.empty()) {
    return drafted;  // the two are equal but for rounding
  }
  for (TokenProbability& each : residual) {
    each.probability /= sum;
  }
  return Pick(residual, pick);
}

}  // namespace vericache
