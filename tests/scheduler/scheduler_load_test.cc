// Many requests, and long ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "scheduler/driver.h"
#include "scheduler/scheduler.h"

namespace vericache {
namespace {

using testing::Driver;

// A group of 4 slots has 40 bytes.
SchedulerOptions Options() {
  return {.prefill_chunk = 1000,
          .room = {1'000'000'000},
          .memory = {1'000'000'000},
          .reloads = true,
          .group = {40},
          .group_slots = 4};
}

// Iterations that a text of 400 tokens takes.
std::ptrdiff_t Iterations(double acceptance, bool adaptive) {
  SchedulerOptions options = Options();
  options.reloads = false;
  options.draft_length = 16;
  options.adaptive = adaptive;
  Driver driver({.scheduler = options, .acceptance = acceptance},
                {{.prompt_tokens = 10, .max_tokens = 400}});
  driver.Run();
  return std::count_if(driver.history().begin(), driver.history().end(),
                       [](const Driver::Iteration& each) { return each.rows; });
}

TEST(Scheduler, AdaptiveDraftsAreShortWhereFewAreAccepted) {
  EXPECT_LT(Iterations(0.0, true), Iterations(0.0, false) / 4);
  EXPECT_LE(Iterations(1.0, true), Iterations(1.0, false));
}

// Seconds until eight requests that begin together have 300 tokens, where reloads take most of the
// link's time and an iteration is at first thought to take `guess` of what it does.
double TimeOf(double guess) {
  constexpr double kIterationS = 0.02;
  SchedulerOptions options = Options();
  options.draft_length = 16;
  options.batch = 8;
  options.iteration_s = guess * kIterationS;
  options.link_bandwidth = 1000.0 / (1.2 * kIterationS);
  Driver driver({.scheduler = options,
                 .bandwidth = options.link_bandwidth,
                 .iteration_s = kIterationS,
                 .acceptance = 0.9},
                std::vector<RequestNeed>(8, {.prompt_tokens = 100, .max_tokens = 1000}));
  while (driver.emitted() < 300) {
    driver.Step();
  }
  return driver.now();
}

TEST(Scheduler, AWrongGuessOfIterationsCostsLittle) {
  const double right = TimeOf(1.0);
  EXPECT_LE(TimeOf(0.1), 1.1 * right);
  EXPECT_LE(TimeOf(0.3), 1.1 * right);
  EXPECT_LE(TimeOf(10.0), 1.1 * right);
}

// Where the link is too slow for all, they take turns.
TEST(Scheduler, NobodyHasTwoRoundsMoreThanOthers) {
  SchedulerOptions options = Options();
  options.batch = 8;
  Driver driver({.scheduler = options, .bandwidth = 3000.0, .acceptance = 0.0},
                std::vector<RequestNeed>(8, {.prompt_tokens = 100, .max_tokens = 100}));
  while (driver.scheduler().waiting() > 0 || driver.history().back().prefill) {
    driver.Step();
  }
  // Without any accepted, a round emits a token.
  std::vector<int> start;
  for (int i = 0; i < 8; ++i) {
    start.push_back(driver.emitted(i));
  }
  while (driver.Step() && driver.scheduler().active() == 8) {
    std::vector<int> rounds;
    for (std::size_t i = 0; i < 8; ++i) {
      rounds.push_back(driver.emitted(static_cast<int>(i)) - start[i]);
    }
    ASSERT_LE(*std::max_element(rounds.begin(), rounds.end()),
              *std::min_element(rounds.begin(), rounds.end()) + 2);
  }
}

// No time is asserted: machines differ.
TEST(Scheduler, PlansForManyRequests) {
  constexpr int kLoadRequests = 256;
  constexpr int kIterations = 4000;
  SchedulerOptions options = Options();
  options.draft_length = 64;
  options.adaptive = true;
  options.batch = kLoadRequests;
  // A full cache is copied in a quarter of an iteration, or, too slowly for all, in two.
  for (const double copy : {0.25, 2.0}) {
    Driver driver(
        {.scheduler = options, .bandwidth = 1e4 / (copy * 0.02), .acceptance = 0.95},
        std::vector<RequestNeed>(kLoadRequests, {.prompt_tokens = 1000, .max_tokens = 100'000}));
    for (int i = 0; i < kIterations; ++i) {
      ASSERT_TRUE(driver.Step());
    }
    EXPECT_EQ(driver.scheduler().active(), kLoadRequests);
    EXPECT_GT(driver.scheduler().counts().rounds, kIterations / 4);
    std::printf("%d requests, reloads of %.2f iterations: %.1f microseconds for each plan\n",
                kLoadRequests, copy, driver.planning_s() / kIterations * 1e6);
  }
}

}  // namespace
}  // namespace vericache
