// Full caches that take turns in fast memory, under the policy full.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/driver.h"
#include "scheduler/scheduler.h"

namespace vericache {
namespace {

using testing::Driver;
using testing::World;

constexpr int kPrompt = 50;
constexpr int kTokens = 400;
constexpr std::uint64_t kFull = 1000;

// All requests are alike; `fits` of them at once. The link brings a full cache in `iterations`.
World AnyWorld(int requests, int fits, double iterations) {
  World world;
  world.scheduler = {.policy = Policy::kFull,
                     .batch = requests,
                     .room = {kFull * static_cast<std::uint64_t>(fits) + kFull / 2},
                     .memory = {kFull * 100},
                     .reloads = true,
                     .group = {10},
                     .group_slots = 4};
  world.bandwidth = 1200.0 / (iterations * world.iteration_s);
  world.save_bandwidth = world.bandwidth;
  world.scheduler.link_bandwidth = world.bandwidth;
  world.scheduler.iteration_s = world.iteration_s;
  return world;
}

std::vector<RequestNeed> Needs(int requests) {
  return std::vector<RequestNeed>(
      static_cast<std::size_t>(requests),
      {.prompt_tokens = kPrompt, .max_tokens = kTokens, .resident = {kFull}, .memory = {kFull}});
}

std::int64_t Swaps(const Driver& driver) {
  std::int64_t swaps = 0;
  for (const Driver::Iteration& iteration : driver.history()) {
    swaps += iteration.swaps;
  }
  return swaps;
}

// Nobody waits for another one's end: when the first one ends, all have had turns.
RC_GTEST_PROP(Swaps, AllRequestsAdvance, ()) {
  const int requests = *rc::gen::inRange(2, 9);
  const int fits = *rc::gen::inRange(1, requests);
  const World world = AnyWorld(requests, fits, *rc::gen::inRange(1, 40) / 8.0);
  Driver driver(world, Needs(requests));
  bool first_end = false;
  while (driver.Step()) {
    if (!first_end && driver.whole() > 0) {
      first_end = true;
      for (int i = 0; i < requests; ++i) {
        RC_ASSERT(driver.emitted(i) >= kTokens / 4);
      }
    }
  }
  RC_ASSERT(driver.whole() == requests);
  RC_ASSERT(Swaps(driver) > 0);
  // Every turn is long, so swaps are few.
  RC_ASSERT(Swaps(driver) <= requests * (kTokens / 64 + 1));
}

// Where the machine's memory is scarcer than fast memory, they take turns just as well.
RC_GTEST_PROP(Swaps, TheMachinesMemoryIsABudgetToo, ()) {
  const int requests = *rc::gen::inRange(2, 9);
  const int fits = *rc::gen::inRange(1, requests);
  World world = AnyWorld(requests, requests, 1.0);
  world.scheduler.memory = {kFull * static_cast<std::uint64_t>(fits)};
  Driver driver(world, Needs(requests));
  driver.Run();
  RC_ASSERT(driver.whole() == requests);
  RC_ASSERT(Swaps(driver) > 0);
}

RC_GTEST_PROP(Swaps, WhereAllFitNothingMoves, ()) {
  const int requests = *rc::gen::inRange(1, 9);
  Driver driver(AnyWorld(requests, requests, 2.0), Needs(requests));
  driver.Run();
  RC_ASSERT(driver.whole() == requests);
  RC_ASSERT(Swaps(driver) == 0);
  RC_ASSERT(driver.scheduler().counts().reloads == 0);
}

}  // namespace
}  // namespace vericache
