#include "evaluation/allocation.h"

#include <algorithm>
#include <numeric>

namespace vericache {
namespace {

// The options on the lower convex hull of loss over bytes, by ascending bytes.
std::vector<std::size_t> Hull(const std::vector<LayerOption>& options) {
  std::vector<std::size_t> order(options.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&options](std::size_t a, std::size_t b) {
    const LayerOption& x = options[a];
    const LayerOption& y = options[b];
    return x.bytes != y.bytes ? x.bytes < y.bytes : x.loss < y.loss;
  });
  const auto slope = [&options](std::size_t from, std::size_t to) {
    return (options[to].loss - options[from].loss) / (options[to].bytes - options[from].bytes);
  };
  std::vector<std::size_t> hull;
  for (const std::size_t next : order) {
    if (!hull.empty() && options[next].loss >= options[hull.back()].loss) {
      continue;  // more bytes for nothing
    }
    while (hull.size() > 1 &&
           slope(hull[hull.size() - 2], hull.back()) >= slope(hull.back(), next)) {
      hull.pop_back();
    }
    hull.push_back(next);
  }
  return hull;
}

}  // namespace

std::optional<std::vector<std::size_t>> Allocate(
    const std::vector<std::vector<LayerOption>>& layers, double budget) {
  std::vector<std::vector<std::size_t>> hulls;
  std::vector<std::size_t> at(layers.size());  // place in the hull
  double bytes = 0.0;
  for (const std::vector<LayerOption>& options : layers) {
    hulls.push_back(Hull(options));
    bytes += options[hulls.back().front()].bytes;
  }
  if (bytes > budget) {
    return std::nullopt;
  }
  while (true) {
    std::optional<std::size_t> best;
    double best_gain = 0.0;
    double best_bytes = 0.0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (at[i] + 1 == hulls[i].size()) {
        continue;
      }
      const LayerOption& now = layers[i][hulls[i][at[i]]];
      const LayerOption& next = layers[i][hulls[i][at[i] + 1]];
      const double more = next.bytes - now.bytes;
      const double gain = (now.loss - next.loss) / more;
      if (gain > best_gain && bytes + more <= budget) {
        best = i;
        best_gain = gain;
        best_bytes = more;
      }
    }
    if (!best) {
      break;
    }
    ++at[*best];
    bytes += best_bytes;
  }
  std::vector<std::size_t> chosen;
  chosen.reserve(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    chosen.push_back(hulls[i][at[i]]);
  }
  return chosen;
}

}  // namespace vericache
