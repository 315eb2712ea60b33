#include "sampling/round_sampler.h"

#include <cstdint>

#include "base/check.h"
#include "sampling/noise.h"

namespace vericache {
namespace {

// Of a draft's distribution, which is kept for the round and may be any, the tail is left out.
constexpr double kDrafterRange = 12.0;

// What a random number is for.
enum Purpose : int { kDraft, kAccept, kPick };

}  // namespace

double RoundSampler::Uniform(Position position, int purpose) const {
  return vericache::Uniform(NoiseKey(options().seed, {static_cast<std::uint64_t>(round_),
                                                      static_cast<std::uint64_t>(Raw(position)),
                                                      static_cast<std::uint64_t>(purpose)}));
}

TokenId RoundSampler::Draft(std::span<const float> logits, Position position,
                            const EmittedTokens& before) {
  if (!Rejects()) {
    return sampler_.Sample(logits, position, before);
  }
  drafters_.push_back(DistributionOf(logits, options(), before, kDrafterRange));
  return Pick(drafters_.back(), Uniform(position, kDraft));
}

std::vector<TokenId> RoundSampler::Verify(std::span<const float> logits, Position first,
                                          std::span<const TokenId> verified,
                                          std::span<const TokenId> drafted) {
  const std::size_t vocabulary = logits.size() / (drafted.size() + 1);
  Check(!Rejects() || drafters_.size() == drafted.size(), "each draft left its distribution");
  std::vector<TokenId> emitted;
  emitted.reserve(drafted.size() + 1);
  for (std::size_t i = 0; i <= drafted.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * vocabulary, vocabulary);
    const Position position{Raw(first) + static_cast<int>(i)};
    const EmittedTokens before{verified, drafted.first(i)};
    if (!Rejects()) {
      emitted.push_back(sampler_.Sample(row, position, before));
    } else {
      const Distribution verifier = DistributionOf(row, options(), before, kNoiseRange);
      const double pick = Uniform(position, kPick);
      emitted.push_back(i == drafted.size() ? Pick(verifier, pick)
                                            : PickVerified(verifier, drafters_[i], drafted[i],
                                                           Uniform(position, kAccept), pick));
    }
    if (i < drafted.size() && emitted.back() != drafted[i]) {
      break;
    }
  }
  ++round_;
  drafters_.clear();
  return emitted;
}

}  // namespace vericache
