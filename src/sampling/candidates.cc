#include "sampling/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

namespace vericache {

float Largest(std::span<const float> values) {
  constexpr std::size_t kLanes = 16;  // independent, for vector registers
  std::array<float, kLanes> most;
  most.fill(-std::numeric_limits<float>::infinity());
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
  float best = -std::numeric_limits<float>::infinity();
  std::size_t token = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best) {
      best = logits[i];
      token = i;
    }
  }
  return TokenId{static_cast<std::int32_t>(token)};
}

std::vector<float> Penalized(std::span<const float> logits, const SamplingOptions& options,
                             const EmittedTokens& before) {
  if (options.presence_penalty == 0.0 && options.frequency_penalty == 0.0) {
    return {};
  }
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

std::vector<Candidate> Candidates(std::span<const float> logits, const SamplingOptions& options,
                                  double range) {
  const double inverse = 1.0 / options.temperature;
  const double best = Largest(logits) * inverse;
  std::vector<Candidate> candidates;
  const double floor = best - range;
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

}  // namespace vericache
