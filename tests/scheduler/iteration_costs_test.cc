#include "scheduler/iteration_costs.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace vericache {
namespace {

// Whatever iterations cost, what is learned from their mixes tells the cost of a round.
RC_GTEST_PROP(IterationCosts, LearnWhatTheMachineCosts, ()) {
  const double own = *rc::gen::inRange(0, 20) * 1e-3;
  const double draft = *rc::gen::inRange(1, 20) * 1e-3;
  const double verify = *rc::gen::inRange(0, 40) * 1e-3;
  const double row = *rc::gen::inRange(1, 10) * 1e-3;
  IterationCosts costs;
  RC_ASSERT(!costs.known());
  for (int i = 0; i < 200; ++i) {
    const int drafts = *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, 8));
    const int verifies = *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, 4));
    const int rows = verifies * (1 + *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, 16)));
    costs.Observe(drafts, verifies, rows, own + drafts * draft + verifies * verify + rows * row);
  }
  RC_ASSERT(costs.known());
  for (const int x : {0, 1, 8, 40}) {
    for (const int batch : {1, 8}) {
      const double expected = (x + 1) * own / batch + x * draft + verify + (x + 1) * row;
      RC_ASSERT(std::abs(costs.RoundSeconds(x, batch) - expected) <= 0.02 * expected);
    }
  }
}

TEST(IterationCosts, ForgetWhatWasLongAgo) {
  IterationCosts costs;
  for (const double draft : {0.01, 0.03}) {
    for (int i = 0; i < 600; ++i) {
      const int verifies = i % 3 == 0 ? 1 : 0;
      const int rows = verifies * (1 + i % 5);
      costs.Observe(i % 4, verifies, rows,
                    0.005 + (i % 4) * draft + verifies * 0.02 + rows * 0.001);
    }
    EXPECT_NEAR(costs.RoundSeconds(10, 1), 11 * 0.005 + 10 * draft + 0.02 + 11 * 0.001, 0.01);
  }
}

}  // namespace
}  // namespace vericache
