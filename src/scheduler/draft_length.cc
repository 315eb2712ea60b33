#include "scheduler/draft_length.h"

#include <algorithm>
#include <cmath>

namespace vericache {
namespace {

// A round counts half as much after this many tokens were judged.
constexpr double kHalfLife = 64.0;

}  // namespace

void AcceptanceEstimate::Observe(int drafted, int accepted) {
  const double rejected = accepted < drafted ? 1.0 : 0.0;
  const double fade = std::exp2(-(accepted + rejected) / kHalfLife);
  accepted_ = std::max(accepted_ * fade + accepted, 0.01);
  rejected_ = std::max(rejected_ * fade + rejected, 0.01);
}

double ExpectedTokens(double rate, int draft_length) {
  return (1.0 - std::pow(rate, draft_length + 1)) / (1.0 - rate);
}

int BestDraftLength(double rate, const RoundCost& cost, int most) {
  int best = 1;
  double best_speed = 0.0;
  for (int x = 1; x <= most; ++x) {
    const double speed = ExpectedTokens(rate, x) / std::max(x + cost.verify, cost.reload);
    if (speed > best_speed) {
      best = x;
      best_speed = speed;
    }
  }
  return best;
}

}  // namespace vericache
