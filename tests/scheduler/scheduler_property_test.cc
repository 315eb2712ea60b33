#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "scheduler/driver.h"
#include "scheduler/scheduler.h"

namespace vericache {
namespace {

using testing::Driver;
using testing::World;

// The driver checks the rules at every iteration, and that all requests end.
struct Case {
  World world;
  std::vector<RequestNeed> needs;
};

// Both ends are included. Large numbers come from the first case on.
int AnyInt(int least, int most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(least, most + 1));
}
Bytes AnyBytes(std::uint64_t most) {
  return {*rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::uint64_t>(1, most + 1))};
}

std::vector<RequestNeed> AnyNeeds() {
  std::vector<RequestNeed> needs(static_cast<std::size_t>(AnyInt(1, 12)));
  for (int i = 0; i < static_cast<int>(needs.size()); ++i) {
    RequestNeed& need = needs[static_cast<std::size_t>(i)];
    need = {
        .prompt_tokens = AnyInt(1, 100), .max_tokens = AnyInt(1, 100), .resident = AnyBytes(2000)};
    need.memory = need.resident + AnyBytes(3000);
    if (AnyInt(0, 3) == 0) {
      need.draft_length = AnyInt(0, 8);
    }
    if (i > 0 && AnyInt(0, 3) == 0) {
      const int other = AnyInt(0, i - 1);
      const int most =
          std::min(needs[static_cast<std::size_t>(other)].prompt_tokens, need.prompt_tokens);
      need.shared = {.request = other, .tokens = AnyInt(1, most)};
    }
  }
  return needs;
}

// Just enough for the largest request, a little more, or ample.
void GiveRoom(Case& any) {
  SchedulerOptions& options = any.world.scheduler;
  options.room = options.memory = {};
  for (const RequestNeed& need : any.needs) {
    options.room = std::max(options.room, Scheduler(options).NeededRoom(need));
    options.memory = std::max(options.memory, need.memory);
  }
  const auto more = static_cast<std::uint64_t>(AnyInt(0, 3));
  if (more > 0) {
    options.room += AnyBytes(options.room.count * more * more);
    options.memory += AnyBytes(options.memory.count * more * more);
  }
}

// The link copies the largest full cache in so many iterations.
void GiveLink(Case& any, double iterations) {
  int tokens = 0;
  for (const RequestNeed& need : any.needs) {
    tokens = std::max(tokens, need.prompt_tokens + need.max_tokens);
  }
  const SchedulerOptions& options = any.world.scheduler;
  const double groups = std::ceil(static_cast<double>(tokens) / options.group_slots);
  any.world.bandwidth =
      static_cast<double>(options.group.count) * groups / (iterations * any.world.iteration_s);
  any.world.save_bandwidth = any.world.bandwidth;
}

Case AnyCase() {
  Case any{.needs = AnyNeeds()};
  any.world.scheduler = {.policy = *rc::gen::weightedElement<Policy>({{4, Policy::kVeriCache},
                                                                      {2, Policy::kLockstep},
                                                                      {1, Policy::kLossy},
                                                                      {1, Policy::kFull},
                                                                      {1, Policy::kAuto}}),
                         .draft_length = AnyInt(1, 20),
                         .adaptive = *rc::gen::arbitrary<bool>(),
                         .batch = AnyInt(1, 8),
                         .prefill_chunk = AnyInt(1, 64),
                         .reloads = AnyInt(0, 4) > 0,
                         .group = AnyBytes(100),
                         .group_slots = AnyInt(1, 16),
                         // The guesses may be far off.
                         .link_bandwidth = std::exp2(AnyInt(0, 30)),
                         .iteration_s = std::exp2(AnyInt(-8, 2)),
                         .turn = AnyInt(1, 40)};
  any.world.verify_s = AnyInt(0, 4) * 0.005;
  any.world.prefill_s = AnyInt(0, 4) * 0.02;
  any.world.acceptance = AnyInt(0, 10) / 10.0;
  any.world.doubt = AnyInt(0, 2) * 0.2;
  any.world.load = AnyInt(0, 1) * 0.5;
  any.world.seed = *rc::gen::arbitrary<std::uint32_t>();
  GiveRoom(any);
  GiveLink(any, std::exp2(AnyInt(-5, 7)));
  return any;
}

RC_GTEST_PROP(Scheduler, EveryRequestEndsWithAllItsTokens, ()) {
  const Case any = AnyCase();
  Driver driver(any.world, any.needs);
  driver.Run();
  RC_ASSERT(driver.whole() == static_cast<int>(any.needs.size()));
}

// Texts end at any token, drafted ones too, and requests fail, or are taken back, at any time,
// while they are queued or copied too.
RC_GTEST_PROP(Scheduler, EveryRequestEndsWhereverOthersEnd, ()) {
  Case any = AnyCase();
  any.world.end = AnyInt(0, 10) / 200.0;
  any.world.abort = AnyInt(0, 10) / 200.0;
  any.world.withdraw = AnyInt(0, 4) / 200.0;
  Driver(any.world, any.needs).Run();
}

// Where the estimates are right from the start, iterations take equally long, reloads are there
// in time, whatever the link's speed and the room.
RC_GTEST_PROP(Scheduler, WhatIsPlannedIsNotLate, ()) {
  Case any = AnyCase();
  World& world = any.world;
  world.scheduler.policy = Policy::kVeriCache;
  world.scheduler.reloads = true;
  world.steady = true;
  world.verify_s = 0.0;
  world.prefill_s = 0.0;
  world.load = 0.0;
  world.end = AnyInt(0, 10) / 400.0;
  GiveRoom(any);
  GiveLink(any, AnyInt(1, 80) / 8.0);
  world.save_bandwidth = 1e18;  // what is still being saved when its reload is due is late
  world.scheduler.link_bandwidth = world.bandwidth;
  world.scheduler.iteration_s = world.iteration_s;
  Driver driver(world, any.needs);
  driver.Run();
  const SchedulerCounts& counts = driver.scheduler().counts();
  // Exactly at their due dates, a few miss them by the rounding of the clock.
  RC_ASSERT(100 * counts.late_reloads <= counts.reloads);
}

RC_GTEST_PROP(Scheduler, WithRoomForAllLockstepVerifiesTogether, ()) {
  Case any = AnyCase();
  World& world = any.world;
  const auto requests = static_cast<int>(any.needs.size());
  world.scheduler.policy = Policy::kLockstep;
  world.scheduler.room = {1'000'000};
  world.scheduler.memory = {1'000'000};
  world.scheduler.batch = requests;
  world.scheduler.prefill_chunk = 1000;
  world.load = 0.0;
  world.save_bandwidth = 1e18;
  for (RequestNeed& need : any.needs) {
    need.max_tokens += 200;
  }
  Driver driver(world, any.needs);
  driver.Run();

  // Those whose prefill ended during a round join the next one.
  int rounds = 0;
  int together = 0;
  for (const Driver::Iteration& iteration : driver.history()) {
    rounds = iteration.prefill ? 0 : rounds;
    if (iteration.verifies > 0) {
      RC_ASSERT(rounds == 0 || iteration.verifies == iteration.running);
      together = std::max(together, iteration.verifies);
      ++rounds;
    }
  }
  RC_ASSERT(together == requests);
}

// However long the prompts before it are, and however many.
RC_GTEST_PROP(Scheduler, AShortPromptIsComputedAtOnce, ()) {
  const int chunk = AnyInt(2, 64);
  const int others = AnyInt(1, 6);
  SchedulerOptions options = {.policy = *rc::gen::element(Policy::kVeriCache, Policy::kFull),
                              .batch = others + 1,
                              .prefill_chunk = chunk,
                              .room = {1'000'000},
                              .memory = {1'000'000},
                              .reloads = *rc::gen::arbitrary<bool>(),
                              .group = {1}};
  Scheduler scheduler(options);
  for (int i = 0; i < others; ++i) {
    scheduler.Submit(i, {.prompt_tokens = AnyInt(3 * chunk, 1000)});
  }
  const int before = AnyInt(0, 1);
  for (int i = 0; i < before; ++i) {
    for (const RowGroup& group : scheduler.Plan().rows) {
      scheduler.Prefilled(group.request, group.rows);
    }
    scheduler.EndIteration(0.1);
  }
  const int rows = AnyInt(1, chunk / 2);
  scheduler.Submit(others, {.prompt_tokens = rows});
  const std::vector<RowGroup>& planned = scheduler.Plan().rows;
  RC_ASSERT(planned.back().request == others);
  RC_ASSERT(planned.back().rows == rows);
}

// However many short ones come after it.
RC_GTEST_PROP(Scheduler, ALongPromptHasHalfOfTheRows, ()) {
  const int chunk = AnyInt(1, 64);
  const int tokens = AnyInt(1, 1000);
  Scheduler scheduler({.policy = Policy::kFull,
                       .batch = 4,
                       .prefill_chunk = chunk,
                       .room = {1'000'000},
                       .memory = {1'000'000}});
  int submitted = 0;
  scheduler.Submit(submitted++, {.prompt_tokens = tokens});
  int iterations = 0;
  for (int prefilled = 0; prefilled < tokens; ++iterations) {
    while (scheduler.waiting() < 2) {
      scheduler.Submit(submitted++, {.prompt_tokens = AnyInt(1, 20)});
    }
    std::vector<int> over;
    for (const RowGroup& group : scheduler.Plan().rows) {
      if (group.kind == RowGroup::Kind::kDecode) {
        over.push_back(group.request);
      } else {
        scheduler.Prefilled(group.request, group.rows);
        prefilled += group.request == 0 ? group.rows : 0;
      }
    }
    scheduler.EndIteration(0.1);
    for (const int request : over) {
      scheduler.Finish(request);
    }
  }
  RC_ASSERT(iterations <= 2 * tokens / chunk + 1);
}

// The same world has the same history: there is no clock in it, and no chance but the world's.
RC_GTEST_PROP(Scheduler, PlansTheSameAgain, ()) {
  const Case any = AnyCase();
  Driver one(any.world, any.needs);
  Driver other(any.world, any.needs);
  one.Run();
  other.Run();
  RC_ASSERT(one.history().size() == other.history().size());
  for (std::size_t i = 0; i < one.history().size(); ++i) {
    RC_ASSERT(one.history()[i].start == other.history()[i].start);
    RC_ASSERT(one.history()[i].verifies == other.history()[i].verifies);
  }
}

}  // namespace
}  // namespace vericache
