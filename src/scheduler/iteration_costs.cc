#include "scheduler/iteration_costs.h"

#include <algorithm>
#include <cstddef>

namespace vericache {
namespace {

// An iteration counts half as much after about fifty others.
constexpr double kForget = 0.986;
constexpr double kUnsure = 1e4;

}  // namespace

IterationCosts::IterationCosts() {
  for (std::size_t i = 0; i < kTerms; ++i) {
    covariance_[i][i] = kUnsure;
  }
}

void IterationCosts::Observe(int drafts, int verifies, int rows, double seconds) {
  with_drafts_ += drafts > 0 ? 1 : 0;
  with_verifies_ += verifies > 0 ? 1 : 0;
  const std::array<double, kTerms> terms = {
      1.0, static_cast<double>(drafts), static_cast<double>(verifies), static_cast<double>(rows)};
  std::array<double, kTerms> gain{};
  double scale = kForget;
  double predicted = 0.0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      gain[i] += covariance_[i][j] * terms[j];
    }
    scale += terms[i] * gain[i];
    predicted += terms[i] * costs_[i];
  }
  for (std::size_t i = 0; i < kTerms; ++i) {
    costs_[i] += gain[i] / scale * (seconds - predicted);
    for (std::size_t j = 0; j < kTerms; ++j) {
      covariance_[i][j] = (covariance_[i][j] - gain[i] * gain[j] / scale) / kForget;
    }
    // What is not seen for long must not become unsure without bound.
    covariance_[i][i] = std::min(covariance_[i][i], kUnsure);
  }
}

double IterationCosts::RoundSeconds(int draft_length, int batch) const {
  const auto cost = [this](std::size_t i) { return std::max(costs_[i], 0.0); };
  return (draft_length + 1) * cost(0) / batch + draft_length * cost(1) + cost(2) +
         (draft_length + 1) * cost(3);
}

}  // namespace vericache
