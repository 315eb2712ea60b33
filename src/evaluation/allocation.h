// What each layer gets of a budget.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace vericache {

// One way to hold a layer: what it costs in quality, and in bytes.
struct LayerOption {
  double loss = 0.0;
  double bytes = 0.0;
};

// One option for each layer, such that all together take at most `budget` bytes, and lose little:
// every layer begins with its smallest option, and the step along a layer's lower convex hull that
// saves most loss a byte is taken again and again, while one fits (Shoham and Gersho 1988,
// "Efficient bit allocation for an arbitrary set of quantizers"). It is what no other choice of as
// many bytes betters, where the last step taken ends just at the budget. nullopt where the smallest
// options are too large.
std::optional<std::vector<std::size_t>> Allocate(
    const std::vector<std::vector<LayerOption>>& layers, double budget);

}  // namespace vericache
