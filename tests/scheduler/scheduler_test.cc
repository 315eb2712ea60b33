#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace vericache {
namespace {

using Kind = RowGroup::Kind;

// A group of 4 slots has 40 bytes; the link copies 60 in an iteration.
SchedulerOptions Options(Policy policy) {
  return {.policy = policy,
          .draft_length = 4,
          .batch = 4,
          .prefill_chunk = 8,
          .room = {10'000},
          .memory = {10'000},
          .reloads = true,
          .group = {40},
          .group_slots = 4,
          .link_bandwidth = 6000.0,
          .iteration_s = 0.01};
}

// Its full cache has 3 groups after the prefill, and copying them takes two iterations.
constexpr RequestNeed kNeed = {
    .prompt_tokens = 10, .max_tokens = 20, .resident = {100}, .memory = {500}};

void EndIteration(Scheduler& scheduler) { scheduler.EndIteration(0.01); }

// Request 0, which is the only one, is prefilled and its full cache is in the store.
Scheduler AfterPrefill(const SchedulerOptions& options, int max_tokens = kNeed.max_tokens) {
  RequestNeed need = kNeed;
  need.max_tokens = max_tokens;
  Scheduler scheduler(options);
  scheduler.Submit(0, need);
  for (const int rows : {8, 2}) {
    const IterationPlan& plan = scheduler.Plan();
    EXPECT_EQ(plan.rows.size(), 1U);
    EXPECT_EQ(plan.rows.at(0).kind, Kind::kPrefill);
    EXPECT_EQ(plan.rows.at(0).rows, rows);
    scheduler.Prefilled(0, rows);
    EndIteration(scheduler);
  }
  if (options.reloads && options.policy != Policy::kFull) {
    scheduler.Stored(0);
  }
  return scheduler;
}

// Plans an iteration in which request 0 drafts, and whether its reload starts with it.
void Draft(Scheduler& scheduler, bool reloads, bool ends = false) {
  const IterationPlan& plan = scheduler.Plan();
  EXPECT_EQ(plan.reload.size(), reloads ? 1U : 0U);
  ASSERT_EQ(plan.rows.size(), 1U);
  EXPECT_EQ(plan.rows[0].kind, Kind::kDraft);
  EXPECT_EQ(plan.rows[0].rows, 1);
  scheduler.Drafted(0, ends);
  EndIteration(scheduler);
}

// Plans an iteration in which request 0 verifies `rows` rows, and all drafts are accepted.
void Verify(Scheduler& scheduler, int rows) {
  const IterationPlan& plan = scheduler.Plan();
  EXPECT_TRUE(plan.reload.empty());
  ASSERT_EQ(plan.rows.size(), 1U);
  EXPECT_EQ(plan.rows[0].kind, Kind::kVerify);
  EXPECT_EQ(plan.rows[0].rows, rows);
  scheduler.Verified(0, rows - 1);
  EndIteration(scheduler);
}

// Plans an iteration in which request 0 waits.
void Wait(Scheduler& scheduler, bool reloads) {
  const IterationPlan& plan = scheduler.Plan();
  EXPECT_EQ(plan.reload.size(), reloads ? 1U : 0U);
  EXPECT_TRUE(plan.rows.empty());
  scheduler.EndIteration(std::nullopt);
}

// Does the drafts of a planned iteration, and ends it; who drafted.
std::vector<int> DoDrafts(Scheduler& scheduler, const IterationPlan& plan) {
  std::vector<int> who;
  for (const RowGroup& group : plan.rows) {
    if (group.kind == Kind::kDraft) {
      who.push_back(group.request);
      scheduler.Drafted(group.request, false);
    }
  }
  EndIteration(scheduler);
  return who;
}

TEST(NeededRoom, IsTheFullCachesOnlyWhereItIsTransient) {
  for (const Policy policy :
       {Policy::kFull, Policy::kLossy, Policy::kVeriCache, Policy::kLockstep}) {
    SchedulerOptions options = Options(policy);
    options.reloads = false;
    EXPECT_EQ(Scheduler(options).NeededRoom(kNeed), Bytes{100}) << Name(policy);
  }
  EXPECT_EQ(Scheduler(Options(Policy::kFull)).NeededRoom(kNeed), Bytes{100});
  // That of the prompt, and that of all 30 tokens.
  EXPECT_EQ(Scheduler(Options(Policy::kLossy)).NeededRoom(kNeed), Bytes{100 + 3 * 40});
  EXPECT_EQ(Scheduler(Options(Policy::kVeriCache)).NeededRoom(kNeed), Bytes{100 + 8 * 40});
  EXPECT_EQ(Scheduler(Options(Policy::kLockstep)).NeededRoom(kNeed), Bytes{100 + 8 * 40});
}

TEST(Scheduler, ARoundDraftsWhileTheFullCacheComes) {
  Scheduler scheduler = AfterPrefill(Options(Policy::kVeriCache));
  for (int i = 0; i < 4; ++i) {
    Draft(scheduler, i == 1);  // two iterations, and one ahead, since the link is idle
  }
  scheduler.Reloaded(0, {120}, 0.02);
  Verify(scheduler, 5);
  // The full cache has another group now, and takes another iteration.
  for (int i = 0; i < 4; ++i) {
    Draft(scheduler, i == 0);
  }
  scheduler.Reloaded(0, {160}, 0.16 / 6);
  Verify(scheduler, 5);
  EXPECT_EQ(scheduler.counts().rounds, 2);
  EXPECT_EQ(scheduler.counts().reloads, 2);
  EXPECT_EQ(scheduler.counts().late_reloads, 0);
}

TEST(Scheduler, AReloadSeeksItsPlaceAnewOnceIterationsProveShorter) {
  SchedulerOptions options = Options(Policy::kVeriCache);
  options.iteration_s = 0.1;  // a reload would take a fifth of an iteration, just before the verify
  Scheduler scheduler = AfterPrefill(options);
  for (int i = 0; i < 4; ++i) {
    Draft(scheduler, i == 1);
  }
  scheduler.Reloaded(0, {120}, 0.02);
  Verify(scheduler, 5);
}

TEST(Scheduler, AFullCacheThatComesEarlyWaitsForTheDraft) {
  Scheduler scheduler = AfterPrefill(Options(Policy::kVeriCache));
  Draft(scheduler, false);
  Draft(scheduler, true);
  Draft(scheduler, false);
  scheduler.Reloaded(0, {120}, 0.001);
  Draft(scheduler, false);
  Verify(scheduler, 5);
}

TEST(Scheduler, ALateReloadDelaysItsVerifyAndIsCountedOnce) {
  Scheduler scheduler = AfterPrefill(Options(Policy::kVeriCache));
  for (int i = 0; i < 4; ++i) {
    Draft(scheduler, i == 1);
  }
  // The memory that is reserved for its verify has room for one token more.
  Draft(scheduler, false);
  Wait(scheduler, false);
  Wait(scheduler, false);
  scheduler.Reloaded(0, {120}, 0.05);
  Verify(scheduler, 6);
  EXPECT_EQ(scheduler.counts().late_reloads, 1);
}

TEST(Scheduler, ADraftThatEndsEarlyVerifiesEarlier) {
  SchedulerOptions options = Options(Policy::kVeriCache);
  options.draft_length = 19;
  Scheduler scheduler = AfterPrefill(options);
  Draft(scheduler, false);
  Draft(scheduler, false, true);
  // Its verify was 17 iterations ahead.
  Wait(scheduler, true);
  Wait(scheduler, false);
  scheduler.Reloaded(0, {120}, 0.02);
  Verify(scheduler, 3);
  EXPECT_EQ(scheduler.counts().late_reloads, 0);
}

// A doubtful token ends an adaptive round where its verify can come earlier, and only there.
TEST(Scheduler, ADoubtfulDraftEndsWhereItsVerifyCanComeEarlier) {
  for (const bool adaptive : {true, false}) {
    SchedulerOptions options = Options(Policy::kVeriCache);
    options.adaptive = adaptive;
    options.reloads = false;
    Scheduler scheduler = AfterPrefill(options);
    for (int i = 0; i < 2; ++i) {  // a verify costs as much as ten drafts, so rounds are long
      while (scheduler.Plan().rows.at(0).kind == Kind::kDraft) {
        scheduler.Drafted(0, false);
        EndIteration(scheduler);
      }
      scheduler.Verified(0, 1);
      scheduler.EndIteration(0.1);
    }
    EXPECT_EQ(scheduler.Plan().rows.at(0).kind, Kind::kDraft);
    scheduler.Drafted(0, false, /*doubtful=*/true);
    EndIteration(scheduler);
    EXPECT_EQ(scheduler.Plan().rows.at(0).kind, adaptive ? Kind::kVerify : Kind::kDraft);
  }
  // Here the reload is under way already.
  SchedulerOptions options = Options(Policy::kVeriCache);
  options.adaptive = true;
  options.link_bandwidth = 2000.0;
  Scheduler scheduler = AfterPrefill(options);
  EXPECT_EQ(scheduler.Plan().reload.size(), 1U);
  scheduler.Drafted(0, false, /*doubtful=*/true);
  EndIteration(scheduler);
  EXPECT_EQ(scheduler.Plan().rows.at(0).kind, Kind::kDraft);
}

TEST(Scheduler, TheLastRoundIsAsShortAsWhatRemains) {
  SchedulerOptions options = Options(Policy::kVeriCache);
  options.draft_length = 19;
  Scheduler scheduler = AfterPrefill(options, 4);
  Draft(scheduler, true);
  Draft(scheduler, false);
  scheduler.Reloaded(0, {120}, 0.02);
  Verify(scheduler, 3);
}

// A request that fails, or verifies before its time, leaves its place on the link to another one.
TEST(Scheduler, APlaceThatIsNotUsedIsFreeAtOnce) {
  for (const bool fails : {true, false}) {
    SchedulerOptions options = Options(Policy::kVeriCache);
    options.link_bandwidth = 600.0;  // a reload takes the whole window
    Scheduler scheduler = AfterPrefill(options);
    Draft(scheduler, true, true);
    scheduler.Submit(1, kNeed);
    for (const int rows : {8, 2}) {
      scheduler.Plan();
      scheduler.Prefilled(1, rows);
      EndIteration(scheduler);
    }
    scheduler.Stored(1);
    // One waits for its reload, the other one for a place, and drafts meanwhile.
    const IterationPlan& plan = scheduler.Plan();
    EXPECT_TRUE(plan.reload.empty());
    EXPECT_EQ(DoDrafts(scheduler, plan), std::vector<int>{1});
    if (fails) {
      scheduler.Finish(0);
    } else {
      scheduler.Reloaded(0, {120}, 0.0);
      EXPECT_EQ(scheduler.Plan().rows.at(0).kind, Kind::kVerify);
      scheduler.Verified(0, 1);
      EXPECT_EQ(DoDrafts(scheduler, plan), std::vector<int>{1});
    }
    EXPECT_EQ(scheduler.Plan().reload, std::vector<int>{1});
  }
}

TEST(Scheduler, WhatIsReadInPlaceIsVerifiedWithoutAReload) {
  for (const Policy policy : {Policy::kVeriCache, Policy::kLockstep}) {
    SchedulerOptions options = Options(policy);
    options.reloads = false;
    Scheduler scheduler = AfterPrefill(options);
    for (int i = 0; i < 4; ++i) {
      Draft(scheduler, false);
    }
    Verify(scheduler, 5);
    Draft(scheduler, false, true);
    Verify(scheduler, 2);
  }
}

// The full caches of both prompts fit at once, or one.
TEST(Scheduler, APromptBeginsOnceThereIsRoomForItsFullCache) {
  for (const bool both : {true, false}) {
    SchedulerOptions options = Options(Policy::kVeriCache);
    options.room = {2 * 100 + (both ? 7 + 2 : 8) * 40U};
    Scheduler scheduler(options);
    const RequestNeed longer = {.prompt_tokens = 28, .max_tokens = 2, .resident = {100}};
    const RequestNeed shorter = {.prompt_tokens = 6, .max_tokens = 2, .resident = {100}};
    scheduler.Submit(3, longer);
    scheduler.Submit(5, shorter);
    const auto first = both ? std::vector<int>{3, 5} : std::vector<int>{3};
    EXPECT_EQ(scheduler.Plan().admit, first);
    scheduler.Prefilled(3, 28);
    EndIteration(scheduler);
    EXPECT_EQ(scheduler.Plan().admit, std::vector<int>{});
    EXPECT_EQ(scheduler.active(), both ? 2 : 1);
    EndIteration(scheduler);
    scheduler.Stored(3);
    scheduler.Plan();
    EXPECT_EQ(scheduler.active(), 2);
  }
}

// One that could only wait for others in fast memory waits outside.
TEST(Scheduler, ALongPromptBeginsOnceItsTurnIsNear) {
  for (const int left : {9, 3}) {
    Scheduler scheduler(Options(Policy::kFull));
    for (const int tokens : {20, 30, 15}) {
      const int request = scheduler.waiting();
      scheduler.Submit(request, {.prompt_tokens = tokens, .resident = {10}, .memory = {10}});
    }
    EXPECT_EQ(scheduler.Plan().admit, (std::vector<int>{0, 2}));  // the third is shorter
    scheduler.Finish(2);
    scheduler.Prefilled(0, 20 - left);
    EndIteration(scheduler);
    const auto next = left < 8 ? std::vector<int>{1} : std::vector<int>{};
    EXPECT_EQ(scheduler.Plan().admit, next);
  }
}

TEST(Scheduler, WhoSharesAPromptBeginsOnceThatIsComputed) {
  for (const bool ends : {false, true}) {
    SchedulerOptions options = Options(Policy::kFull);
    Scheduler scheduler(options);
    RequestNeed sharing = kNeed;
    sharing.shared = {.request = 0, .tokens = 8};
    scheduler.Submit(0, kNeed);
    scheduler.Submit(1, sharing);
    RequestNeed other = kNeed;
    other.prompt_tokens = 5;
    scheduler.Submit(2, other);
    EXPECT_EQ(scheduler.Plan().admit, (std::vector<int>{0, 2}));
    if (ends) {
      scheduler.Finish(0);
    } else {
      scheduler.Prefilled(0, 4);
      EndIteration(scheduler);
      EXPECT_EQ(scheduler.Plan().admit, std::vector<int>{});
      scheduler.Prefilled(0, 4);
    }
    EndIteration(scheduler);
    EXPECT_EQ(scheduler.Plan().admit, std::vector<int>{1});
  }
}

// A request whose prefill does not fit beside the reloads under way gets its memory when it begins.
TEST(Scheduler, WhoWaitsForRoomHoldsNone) {
  for (const bool leaves : {false, true}) {
    SchedulerOptions options = Options(Policy::kVeriCache);
    options.room = {2 * 100 + 8 * 40};
    Scheduler scheduler = AfterPrefill(options);
    for (int i = 0; i < 3; ++i) {
      Draft(scheduler, i == 1);
    }
    scheduler.Submit(1, {.prompt_tokens = 28, .max_tokens = 2, .resident = {100}, .memory = {500}});
    Draft(scheduler, false);
    EXPECT_EQ(scheduler.active(), 2);
    EXPECT_EQ(scheduler.in_use(), Bytes{100 + 4 * 40});
    if (leaves) {
      scheduler.Finish(1);
    }
    EXPECT_EQ(scheduler.in_use(), Bytes{100 + 4 * 40});
    scheduler.Reloaded(0, {120}, 0.02);
    Verify(scheduler, 5);
    EXPECT_EQ(scheduler.in_use(), Bytes{100});
    EXPECT_EQ(scheduler.Plan().admit, leaves ? std::vector<int>{} : std::vector<int>{1});
    EXPECT_EQ(scheduler.in_use(), leaves ? Bytes{100 + 5 * 40} : Bytes{2 * 100 + 7 * 40});
  }
}

TEST(Scheduler, BatchAndMemoryHoldOthersBack) {
  for (const bool by_batch : {true, false}) {
    SchedulerOptions options = Options(Policy::kFull);
    options.batch = by_batch ? 2 : 4;
    options.memory = {by_batch ? 10'000U : 1499U};
    Scheduler scheduler(options);
    for (const int request : {0, 1, 2}) {
      scheduler.Submit(request, kNeed);
    }
    for (const int request : {0, 1}) {  // one prompt after the other, since they are equally long
      EXPECT_EQ(scheduler.Plan().admit, std::vector<int>{request});
      scheduler.Prefilled(request, 10);
      EndIteration(scheduler);
    }
    EXPECT_EQ(scheduler.Plan().admit, std::vector<int>{});
    EXPECT_EQ(scheduler.active(), 2);
    EXPECT_EQ(scheduler.waiting(), 1);
    EndIteration(scheduler);
    scheduler.Finish(1);
    EXPECT_EQ(scheduler.Plan().admit, std::vector<int>{2});
  }
}

TEST(Scheduler, MeasuresReplaceTheGuessesAndPrefillIsLeftOut) {
  Scheduler scheduler(Options(Policy::kVeriCache));
  scheduler.Submit(0, kNeed);
  scheduler.Plan();
  scheduler.Prefilled(0, 8);
  scheduler.EndIteration(3.0);
  EXPECT_EQ(scheduler.iteration_s(), 0.01);
  scheduler.Plan();
  scheduler.Prefilled(0, 2);
  scheduler.EndIteration(3.0);
  scheduler.Stored(0);
  scheduler.Plan();
  scheduler.Drafted(0, false);
  scheduler.EndIteration(0.5);
  EXPECT_EQ(scheduler.iteration_s(), 0.5);
  scheduler.Reloaded(0, {120}, 0.25);
  EXPECT_EQ(scheduler.link_bandwidth(), 480.0);
}

TEST(RunningEstimate, FollowsWhatIsMeasured) {
  RunningEstimate estimate(1000.0);
  EXPECT_EQ(estimate.value(), 1000.0);
  estimate.Observe(2.0);
  estimate.Observe(4.0);
  EXPECT_DOUBLE_EQ(estimate.value(), 3.0);
  for (int i = 0; i < 100; ++i) {
    estimate.Observe(7.0);
  }
  EXPECT_NEAR(estimate.value(), 7.0, 0.01);
}

}  // namespace
}  // namespace vericache
