#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"

namespace vericache {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  TokenId token{};
  double logit = 0.0;  // over the temperature
};

bool Better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
// generators"): a bijection whose outputs for a counter times the golden ratio pass for random.
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

// Gumbel noise of one token at one position.
double Noise(std::uint64_t key, TokenId token) {
  const std::uint64_t bits = Mix(key + kGolden * (static_cast<std::uint64_t>(Raw(token)) + 1));
  const double uniform = (static_cast<double>(bits >> 12U) + 0.5) * 0x1p-52;  // in (0, 1)
  return -std::log(-std::log(uniform));
}

// Noise lies between -log(53 log 2) and 53 log 2: what is further below the best logit than these
// are apart is never picked, and adds less to a sum of probabilities than a double's rounding.
constexpr double kNoiseRange = 40.4;

float Largest(std::span<const float> values) {
  constexpr std::size_t kLanes = 16;  // independent, for vector registers
  std::array<float, kLanes> most;
  most.fill(-kInfinity);
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      most[lane] = values[i + lane] > most[lane] ? values[i + lane] : most[lane];
    }
  }
  for (; i < values.size(); ++i) {
    most[0] = values[i] > most[0] ? values[i] : most[0];
  }
  return *std::max_element(most.begin(), most.end());
}

TokenId Greedy(std::span<const float> logits) {
  float best = -kInfinity;
  std::size_t token = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best) {
      best = logits[i];
      token = i;
    }
  }
  return TokenId{static_cast<std::int32_t>(token)};
}

// The logits less the penalties of what was emitted.
std::vector<float> Penalized(std::span<const float> logits, const SamplingOptions& options,
                             const EmittedTokens& before) {
  std::map<TokenId, int> counts;
  for (const std::span<const TokenId> tokens : {before.verified, before.drafted}) {
    for (const TokenId token : tokens) {
      ++counts[token];
    }
  }
  std::vector<float> penalized(logits.begin(), logits.end());
  for (const auto& [token, count] : counts) {
    penalized[static_cast<std::size_t>(Raw(token))] -=
        static_cast<float>(options.presence_penalty + options.frequency_penalty * count);
  }
  return penalized;
}

// The candidates that can be picked, those of top_k and top_p the best ones first.
std::vector<Candidate> Candidates(std::span<const float> logits, const SamplingOptions& options) {
  const double inverse = 1.0 / options.temperature;
  const double best = Largest(logits) * inverse;
  std::vector<Candidate> candidates;
  const double floor = best - kNoiseRange;
  const double least =
      options.min_p > 0.0 ? std::max(floor, best + std::log(options.min_p)) : floor;
  const bool all = options.top_p < 1.0;  // min_p comes after it
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double logit = static_cast<double>(logits[i]) * inverse;
    if (logit >= (all ? floor : least)) {
      candidates.push_back({TokenId{static_cast<std::int32_t>(i)}, logit});
    }
  }
  const auto count = options.top_k > 0
                         ? std::min(candidates.size(), static_cast<std::size_t>(options.top_k))
                         : candidates.size();
  if (count < candidates.size()) {
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count),
                      candidates.end(), Better);
    candidates.resize(count);
  }
  if (options.top_p < 1.0) {
    double total = 0.0;
    for (const Candidate& each : candidates) {
      total += std::exp(each.logit - best);
    }
    // A heap gives the best ones one by one, and few are needed.
    std::vector<Candidate> heap = std::move(candidates);
    const auto worse = [](const Candidate& a, const Candidate& b) { return Better(b, a); };
    std::make_heap(heap.begin(), heap.end(), worse);
    candidates.clear();
    for (double sum = 0.0; !heap.empty() && sum < options.top_p * total;) {
      std::pop_heap(heap.begin(), heap.end(), worse);
      candidates.push_back(heap.back());
      heap.pop_back();
      sum += std::exp(candidates.back().logit - best);
    }
  }
  if (all) {
    std::erase_if(candidates, [least](const Candidate& each) { return each.logit < least; });
  }
  return candidates;
}

}  // namespace

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
  std::vector<float> penalized;
  if (options_.presence_penalty != 0.0 || options_.frequency_penalty != 0.0) {
    penalized = Penalized(logits, options_, before);
    logits = penalized;
  }
  // Infinities leave nothing to chance.
  if (options_.temperature == 0.0 || !std::isfinite(Largest(logits))) {
    return Greedy(logits);
  }
  const std::uint64_t key =
      Mix(Mix(options_.seed + kGolden) + kGolden * (static_cast<std::uint64_t>(Raw(position)) + 1));
  const std::vector<Candidate> candidates = Candidates(logits, options_);
  Candidate best{candidates.front().token, -std::numeric_limits<double>::infinity()};
  for (const Candidate& each : candidates) {
    const Candidate noisy{each.token, each.logit + Noise(key, each.token)};
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
