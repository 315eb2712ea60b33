#include "server/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace vericache {

TokenLogprob LogprobOf(const EmittedToken& emitted, int top) {
  const std::span<const float> logits = emitted.logits;
  const double most = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - most);
  }
  const double total = most + std::log(sum);
  const auto logprob = [&](std::size_t token) {
    return static_cast<float>(static_cast<double>(logits[token]) - total);
  };
  TokenLogprob result{.token = emitted.token,
                      .logprob = logprob(static_cast<std::size_t>(Raw(emitted.token)))};
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min<std::ptrdiff_t>(top, static_cast<std::ptrdiff_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [logits](std::int32_t a, std::int32_t b) {
                      const float of_a = logits[static_cast<std::size_t>(a)];
                      const float of_b = logits[static_cast<std::size_t>(b)];
                      return of_a != of_b ? of_a > of_b : a < b;
                    });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::int32_t token = order[static_cast<std::size_t>(i)];
    result.top.emplace_back(TokenId{token}, logprob(static_cast<std::size_t>(token)));
  }
  return result;
}

}  // namespace vericache
