#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace vericache {

struct SamplingOptions {
  double temperature = 0.0;        // 0: the most likely token
  int top_k = 0;                   // candidates that are left, the most likely ones; 0: all
  double top_p = 1.0;              // the fewest candidates of this probability together
  double min_p = 0.0;              // candidates of at least this share of the largest probability
  double presence_penalty = 0.0;   // off the logit of a token that was emitted
  double frequency_penalty = 0.0;  // and for each time that it was
  std::uint64_t seed = 0;
  // How drafts are verified at a temperature above 0. False: with the noise that they were drafted
  // with, so that the output is that of the full cache with the same seed, token for token. True:
  // by rejection sampling, which accepts more; the output has the full cache's distribution.
  bool rejection = false;

  bool operator==(const SamplingOptions&) const = default;
};

// Throws UserError, naming the option, where one is out of range.
void ValidateSampling(const SamplingOptions& options);

// What a request emitted before the token to be sampled; drafted tokens count as emitted.
struct EmittedTokens {
  std::span<const TokenId> verified;
  std::span<const TokenId> drafted;
};

// What decodes without drafts, and what drafts and verifies where not by rejection sampling: a
// deterministic function of the logits, the position and the tokens before it, for drafts and
// verifies alike: a draft is accepted where both pick the same token.
//
// Greedy: the largest logit, the lowest token id among equals. With a temperature: penalties, then
// the temperature, then the candidates that top_k, top_p and min_p leave, in this order; of these
// the one with the largest logit + Gumbel noise, which picks each with its probability (Gumbel
// 1954; the "Gumbel-max trick"). The noise is keyed by seed, position and token, so that drafter
// and verifier share it. NaNs count as the smallest logit.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options = {}) : options_(options) {}

  const SamplingOptions& options() const { return options_; }

  // The token that follows `position`; `logits` has one entry per token of the vocabulary.
  TokenId Sample(std::span<const float> logits, Position position,
                 const EmittedTokens& before = {}) const;

 private:
  SamplingOptions options_;
};

// How far the logit of `token` is above every other one's, in nats of odds; below 0 where one is
// larger. `logits` has at least two entries.
float Margin(std::span<const float> logits, TokenId token);

}  // namespace vericache
