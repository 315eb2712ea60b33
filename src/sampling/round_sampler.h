#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/types.h"
#include "sampling/rejection.h"
#include "sampling/sampler.h"

namespace vericache {

// Samples the drafts of a request and verifies them, round after round, the one or the other way
// (SamplingOptions::rejection).
//
// The random numbers of rejection sampling are keyed by seed, round and position: those of a draft
// that was thrown away, on which it may depend when a round ends, are never used again.
class RoundSampler {
 public:
  explicit RoundSampler(const SamplingOptions& options = {}) : sampler_(options) {}

  const SamplingOptions& options() const { return sampler_.options(); }

  // A token that is emitted without a draft: as Sampler does.
  TokenId Sample(std::span<const float> logits, Position position,
                 const EmittedTokens& before = {}) const {
    return sampler_.Sample(logits, position, before);
  }

  // The next token of this round's draft.
  TokenId Draft(std::span<const float> logits, Position position, const EmittedTokens& before);

  // The tokens that the round emits: those of `drafted` that were accepted, and one more. `logits`
  // are [drafted.size() + 1][vocabulary], row 0 those after `first`. The next round begins.
  std::vector<TokenId> Verify(std::span<const float> logits, Position first,
                              std::span<const TokenId> verified, std::span<const TokenId> drafted);

 private:
  bool Rejects() const { return options().rejection && options().temperature > 0.0; }
  double Uniform(Position position, int purpose) const;

  Sampler sampler_;
  int round_ = 0;
  std::vector<Distribution> drafters_;  // of this round's drafts, where they are needed
};

}  // namespace vericache
