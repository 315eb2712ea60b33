#include "evaluation/allocation.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;
using Layers = std::vector<std::vector<LayerOption>>;

// The least loss of all choices within the budget.
double BestLoss(const Layers& layers, std::size_t layer, double budget) {
  if (layer == layers.size()) {
    return 0.0;
  }
  double best = std::numeric_limits<double>::infinity();
  for (const LayerOption& option : layers[layer]) {
    if (option.bytes <= budget) {
      best = std::min(best, option.loss + BestLoss(layers, layer + 1, budget - option.bytes));
    }
  }
  return best;
}

RC_GTEST_PROP(Allocate, KeepsTheBudgetAndIsBestForTheBytesThatItTakes, (std::uint32_t seed)) {
  RandomData random(seed);
  Layers layers(Size(1 + random.Below(4)));
  for (auto& options : layers) {
    for (int i = 1 + random.Below(5); i > 0; --i) {
      options.push_back({.loss = static_cast<double>(random.Below(50)),
                         .bytes = static_cast<double>(1 + random.Below(30))});
    }
  }
  const double budget = 5.0 + random.Below(100);
  const auto chosen = Allocate(layers, budget);
  const double best = BestLoss(layers, 0, budget);
  if (!chosen) {
    RC_ASSERT(best == std::numeric_limits<double>::infinity());
    return;
  }
  double bytes = 0.0;
  double loss = 0.0;
  double largest_step = 0.0;  // that an option of one layer saves
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerOption& option = layers[i].at((*chosen)[i]);
    bytes += option.bytes;
    loss += option.loss;
    for (const LayerOption& other : layers[i]) {
      largest_step = std::max(largest_step, option.loss - other.loss);
    }
  }
  RC_ASSERT(bytes <= budget);
  // What is left over is less than the next step takes, which saves at most so much.
  RC_ASSERT(loss <= best + largest_step);
}

TEST(Allocate, GivesMoreToTheLayerThatNeedsIt) {
  const std::vector<LayerOption> needy = {{.loss = 10, .bytes = 1}, {.loss = 0, .bytes = 3}};
  const std::vector<LayerOption> modest = {{.loss = 1, .bytes = 1}, {.loss = 0, .bytes = 3}};
  EXPECT_EQ(Allocate({modest, needy}, 4), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(Allocate({modest, needy}, 6), (std::vector<std::size_t>{1, 1}));
  EXPECT_EQ(Allocate({modest, needy}, 2), (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(Allocate({modest, needy}, 1.5), std::nullopt);
}

}  // namespace
}  // namespace vericache
