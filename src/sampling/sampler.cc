#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace vericache {

TokenId Sampler::Sample(std::span<const float> logits, Position /*position*/) const {
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

namespace {

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

}  // namespace

float Margin(std::span<const float> logits, TokenId token) {
  const auto at = static_cast<std::size_t>(Raw(token));
  return logits[at] - std::max(Largest(logits.first(at)), Largest(logits.subspan(at + 1)));
}

}  // namespace vericache
