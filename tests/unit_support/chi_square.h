#pragma once

#include <cstddef>
#include <span>

namespace vericache::testing {

// Pearson's statistic of what was drawn, `draws` times, against its probabilities; infinite where
// something was drawn that cannot be.
inline double ChiSquare(std::span<const int> drawn, std::span<const double> probabilities,
                        int draws) {
  double sum = 0.0;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const double off = drawn[i] - probabilities[i] * draws;
    sum += off == 0.0 ? 0.0 : off * off / (probabilities[i] * draws);
  }
  return sum;
}

}  // namespace vericache::testing
