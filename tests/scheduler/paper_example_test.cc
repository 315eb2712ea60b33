// The paper's example ("KV Swap Scheduling"): ten requests of 1 GB compressed and 4 GB full, drafts
// of 30, a link that copies 4 GB in 80 ms, iterations of 35 ms, and of 37 ms with a verify. The
// weights' 50 GB are not in the scheduler's room.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "scheduler/driver.h"
#include "scheduler/scheduler.h"

namespace vericache {
namespace {

using testing::Driver;
using testing::World;

constexpr std::uint64_t kGB = 1'000'000'000;
constexpr int kRequests = 10;
constexpr int kPrompt = 32768;
constexpr int kTokens = 2000;
constexpr int kDraftLength = 30;
constexpr Bytes kAllCompressed = {kRequests * kGB};
// Of 4 GB at first, at its end.
constexpr Bytes kFull = {4 * kGB * (kPrompt + kTokens + 64) / kPrompt};
constexpr Bytes kAmple = {100 * kGB};

World Example(Policy policy, Bytes room) {
  return {.scheduler = {.policy = policy,
                        .draft_length = kDraftLength,
                        .batch = kRequests,
                        .prefill_chunk = 2048,
                        .room = room,
                        .memory = {1000 * kGB},
                        .reloads = true,
                        .group = {4 * kGB * 64 / kPrompt}},
          .bandwidth = 50e9,
          .save_bandwidth = 50e9,
          .iteration_s = 0.035,
          .verify_s = 0.002,
          .prefill_s = 0.2,
          .acceptance = 0.97};
}

// While all ten were there, from two rounds after the last prefill on.
struct Steady {
  int iterations = 0;
  int verifies = 0;
  int at_once = 0;      // verifies in one iteration, at most
  int apart = 1000;     // iterations from one that verifies to the next, at least
  int full_caches = 0;  // in fast memory, at most
  Bytes in_use;         // at most
  int late = 0;
  int queued = 0;  // reloads that began while the link was busy
  double tokens_per_s = 0.0;
};

Steady RunSteadily(const World& world) {
  const std::vector<RequestNeed> needs(
      kRequests,
      {.prompt_tokens = kPrompt, .max_tokens = kTokens, .resident = {kGB}, .memory = {5 * kGB}});
  Driver driver(world, needs);
  for (int settled = 0; settled <= 2 * (kDraftLength + 1) && driver.Step(); ++settled) {
    if (driver.scheduler().waiting() > 0 || driver.history().back().prefill) {
      settled = 0;
    }
  }
  const double start = driver.now();
  const std::int64_t emitted = driver.emitted();
  const std::int64_t late = driver.scheduler().counts().late_reloads;
  const int queued = driver.queued_reloads();
  int last = -1000;
  Steady steady;
  while (driver.scheduler().active() == kRequests) {
    driver.Step();
    const Driver::Iteration& iteration = driver.history().back();
    ++steady.iterations;
    steady.verifies += iteration.verifies;
    steady.at_once = std::max(steady.at_once, iteration.verifies);
    steady.full_caches = std::max(steady.full_caches, iteration.full_caches);
    steady.in_use = std::max(steady.in_use, iteration.in_use);
    if (iteration.verifies > 0) {
      steady.apart = std::min(steady.apart, steady.iterations - last);
      last = steady.iterations;
    }
  }
  steady.late = static_cast<int>(driver.scheduler().counts().late_reloads - late);
  steady.queued = driver.queued_reloads() - queued;
  steady.tokens_per_s = static_cast<double>(driver.emitted() - emitted) / (driver.now() - start);
  return steady;
}

TEST(PaperExample, VerifiesAreSpread) {
  const Steady steady = RunSteadily(Example(Policy::kVeriCache, kAmple));
  EXPECT_GT(steady.iterations, 1000);
  EXPECT_EQ(steady.at_once, 1);
  EXPECT_GE(steady.apart, 2);  // a reload takes 2.3 iterations of the link
  // Nobody waits long for a place: one round in about 31 iterations for each.
  EXPECT_GE(steady.verifies * (kDraftLength + 5), steady.iterations * kRequests);
}

TEST(PaperExample, ReloadsAreOnTimeAndOneAfterTheOther) {
  const Steady steady = RunSteadily(Example(Policy::kVeriCache, kAmple));
  EXPECT_EQ(steady.late, 0);
  EXPECT_EQ(steady.queued, 0);
}

// One is read while the next one comes, however much room there is.
TEST(PaperExample, FastMemoryHoldsTwoFullCaches) {
  const Steady steady = RunSteadily(Example(Policy::kVeriCache, kAmple));
  EXPECT_LE(steady.full_caches, 2);
  EXPECT_LE(steady.in_use, kAllCompressed + kFull * 2);
}

TEST(PaperExample, RoomForOneFullCacheIsEnough) {
  const Steady steady = RunSteadily(Example(Policy::kVeriCache, kAllCompressed + kFull));
  EXPECT_EQ(steady.full_caches, 1);
  EXPECT_EQ(steady.late, 0);
  const Steady ample = RunSteadily(Example(Policy::kVeriCache, kAmple));
  EXPECT_GT(steady.tokens_per_s, 0.8 * ample.tokens_per_s);
}

TEST(PaperExample, LockstepNeedsAllFullCachesAtOnce) {
  const Steady steady = RunSteadily(Example(Policy::kLockstep, kAmple));
  EXPECT_EQ(steady.at_once, kRequests);
  EXPECT_EQ(steady.full_caches, kRequests);
  EXPECT_GT(steady.in_use, kAllCompressed + Bytes{4 * kGB} * kRequests);
  // The link serves all ten for one iteration: the first is there in time, and nine are late.
  EXPECT_NEAR(steady.late, 0.9 * steady.verifies, 10.0);
}

TEST(PaperExample, LockstepWithLessRoomIsLate) {
  const Steady steady = RunSteadily(Example(Policy::kLockstep, kAllCompressed + kFull * 2));
  EXPECT_LE(steady.full_caches, 2);
  EXPECT_LE(steady.at_once, 2);
  EXPECT_GT(steady.late, steady.verifies / 2);
}

TEST(PaperExample, StaggeringIsFasterThanLockstep) {
  for (const Bytes room : {kAmple, kAllCompressed + kFull * 2, kAllCompressed + kFull}) {
    const Steady staggered = RunSteadily(Example(Policy::kVeriCache, room));
    const Steady lockstep = RunSteadily(Example(Policy::kLockstep, room));
    std::printf("room for %.0f GB: %.0f tokens/s, in lockstep %.0f; full caches: %d, %d\n",
                static_cast<double>(room.count) / kGB, staggered.tokens_per_s,
                lockstep.tokens_per_s, staggered.full_caches, lockstep.full_caches);
    EXPECT_GT(staggered.tokens_per_s, 1.5 * lockstep.tokens_per_s);
  }
}

// Iterations that verify twice as long as others make nothing late, where the link has time to
// spare.
TEST(PaperExample, LongVerifiesAreOnTimeToo) {
  World world = Example(Policy::kVeriCache, kAmple);
  world.verify_s = world.iteration_s;
  world.bandwidth *= 1.5;
  const Steady steady = RunSteadily(world);
  EXPECT_GT(steady.verifies, 300);
  EXPECT_EQ(steady.late, 0);
}

// Guesses that are ten times too high, or too low, are forgotten.
TEST(PaperExample, WrongFirstGuessesMakeNothingLateLater) {
  for (const double factor : {0.1, 10.0}) {
    World world = Example(Policy::kVeriCache, kAmple);
    world.scheduler.link_bandwidth = factor * world.bandwidth;
    world.scheduler.iteration_s = factor * world.iteration_s;
    const Steady steady = RunSteadily(world);
    EXPECT_EQ(steady.late, 0);
    EXPECT_EQ(steady.at_once, 1);
  }
}

}  // namespace
}  // namespace vericache
