// The performance model against the review's worked examples, and what must hold of it anywhere.
#include "perfmodel/equations.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace vericache {
namespace {

constexpr std::uint64_t kGiga = 1'000'000'000;

DeviceProfile Workstation() { return FindDevice("rtx-pro-6000"); }

// Weights alone: the examples give no shape.
ModelShape Weights(double giga) {
  return {.name = "weights",
          .weights = {static_cast<std::uint64_t>(giga * 1e9)},
          .parameters = giga * 1e9 / 2.0,
          .layers = 40,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128};
}

Workload FiveGigabytes() {
  return {.full_cache = {5 * kGiga}, .compression = 0.2, .draft_length = 25};
}

// "T_gpu = 55.2 / 1600 = 35 ms, T_xfer = 1.2 / 64 = 19 ms, so T_iter = 35 ms".
TEST(PredictIteration, MistralExample) {
  const IterationTime time =
      PredictIteration(Policy::kVeriCache, Workstation(), Weights(48), FiveGigabytes(), 6);
  EXPECT_NEAR(time.gpu, 55.2 / 1600, 1e-6);
  EXPECT_NEAR(time.xfer, 1.2 / 64, 1e-6);
  EXPECT_NEAR(time.iter(), 0.0345, 1e-4);
}

// "T_gpu = 71.2 / 1600 = 44 ms".
TEST(PredictIteration, QwenExample) {
  const IterationTime time =
      PredictIteration(Policy::kVeriCache, Workstation(), Weights(64), FiveGigabytes(), 6);
  EXPECT_NEAR(time.iter(), 71.2 / 1600, 1e-6);
}

// 21.25 of 25 drafts accepted: 22.25 tokens in 26 iterations, not 1.82 an iteration.
TEST(TokensPerIteration, CountsEveryTokenOnce) {
  const AcceptanceModel acceptance = AcceptanceModel::FromShare(0.85, 25);
  EXPECT_NEAR(TokensPerIteration(Policy::kVeriCache, acceptance, 25), 22.25 / 26, 1e-9);
  EXPECT_EQ(TokensPerIteration(Policy::kFull, acceptance, 25), 1.0);
}

RC_GTEST_PROP(TokensPerIteration, IsAtMostOne, ()) {
  const double chance = *rc::gen::inRange(0, 1000) / 1000.0;
  const int x = *rc::gen::inRange(1, 200);
  const double tokens =
      TokensPerIteration(Policy::kVeriCache, AcceptanceModel::FromChance(chance), x);
  RC_ASSERT(tokens > 0.0);
  RC_ASSERT(tokens <= 1.0);
}

// At the critical ratio both terms are equal, below it the link binds, above it fast memory.
RC_GTEST_PROP(CriticalRatio, IsWhereTheTermsMeet, ()) {
  DeviceProfile device = Workstation();
  device.link_bandwidth = device.memory_bandwidth / *rc::gen::inRange(10, 60);
  Workload workload{.full_cache = {kGiga * static_cast<std::uint64_t>(*rc::gen::inRange(1, 20))},
                    .draft_length = *rc::gen::inRange(1, 60)};
  const int batch = *rc::gen::inRange(1, 100);
  const ModelShape model = Weights(48);
  const double critical = CriticalRatio(device, model, workload, batch);
  const auto excess = [&](double c) {
    workload.compression = c;
    const IterationTime time = PredictIteration(Policy::kVeriCache, device, model, workload, batch);
    return (time.gpu - time.xfer) / (time.gpu + time.xfer);
  };
  RC_ASSERT(std::abs(excess(critical)) < 1e-9);
  RC_ASSERT(excess(critical - 0.01) < 0.0);
  RC_ASSERT(excess(critical + 0.01) > 0.0);
}

// A device whose cores multiply and read caches in turn.
DeviceProfile Processor() {
  return {.name = "processor",
          .memory = {64 * kGiga},
          .memory_bandwidth = 20e9,
          .link_bandwidth = 0.5e9,
          .flops = 1e11,
          .draft_cache_bandwidth = 10e9,
          .verify_cache_bandwidth = 5e9,
          .iteration_s = 0.02};
}

// 100 MB at c = 0.1, x = 9; 8 requests, 0.1e9 weights: 7.2 draft rows and 8 of verifies, of 2 ms.
TEST(PredictIteration, AddsWhatIsDoneInTurn) {
  const ModelShape model{.weights = {kGiga / 10}, .parameters = 1e8};
  const Workload workload{.full_cache = {kGiga / 10}, .compression = 0.1, .draft_length = 9};
  const IterationTime time =
      PredictIteration(Policy::kVeriCache, Processor(), model, workload, 8.0);
  EXPECT_NEAR(time.gpu, 7.2 * 1e7 / 10e9 + 0.8 * 1e8 / 5e9, 1e-9);
  EXPECT_NEAR(time.compute, 0.02 + 15.2 * 2e8 / 1e11, 1e-9);
  EXPECT_NEAR(time.xfer, 0.8e9 / (9.0 * 0.5e9), 1e-9);
  EXPECT_NEAR(time.iter(), time.xfer, 1e-9);
  EXPECT_NEAR(PredictIteration(Policy::kFull, Processor(), model, workload, 8.0).iter(),
              0.02 + 8.0 * (2e8 / 1e11 + 1e8 / 10e9), 1e-9);
  // The link binds up to the critical ratio, and from a certain batch on.
  Workload critical = workload;
  critical.compression = CriticalRatio(Processor(), model, workload, 8.0);
  const IterationTime both =
      PredictIteration(Policy::kVeriCache, Processor(), model, critical, 8.0);
  EXPECT_NEAR(both.gpu + both.compute, both.xfer, 1e-9);
  const BatchLimit limit = LargestBatch(Policy::kVeriCache, Processor(), model, workload);
  ASSERT_TRUE(limit.by_link.has_value());
  const auto binds = [&](double batch) {
    const IterationTime at =
        PredictIteration(Policy::kVeriCache, Processor(), model, workload, batch);
    return at.xfer > at.gpu + at.compute;
  };
  EXPECT_FALSE(binds(*limit.by_link));
  EXPECT_TRUE(binds(*limit.by_link + 1));
}

TEST(LargestBatch, FullAndLossyFillMemory) {
  const Workload workload = FiveGigabytes();
  EXPECT_EQ(LargestBatch(Policy::kFull, Workstation(), Weights(48), workload).batch, 9);
  EXPECT_EQ(LargestBatch(Policy::kLossy, Workstation(), Weights(48), workload).batch, 48);
  EXPECT_EQ(LargestBatch(Policy::kFull, Workstation(), Weights(95), workload).batch, 0);
  EXPECT_EQ(LargestBatch(Policy::kVeriCache, Workstation(), Weights(95), workload).batch, 0);
}

// For a 24B model on the workstation card the link binds first.
TEST(LargestBatch, LinkBindsFirstOnTheWorkstation) {
  const BatchLimit limit =
      LargestBatch(Policy::kVeriCache, Workstation(), Weights(48), FiveGigabytes());
  ASSERT_TRUE(limit.by_link.has_value());
  EXPECT_LT(*limit.by_link, limit.by_memory);
  EXPECT_EQ(limit.batch, *limit.by_link);
  // One more and the link takes longer than fast memory.
  const auto time = [&](int batch) {
    return PredictIteration(Policy::kVeriCache, Workstation(), Weights(48), FiveGigabytes(), batch);
  };
  EXPECT_LE(time(limit.batch).xfer, time(limit.batch).gpu);
  EXPECT_GT(time(limit.batch + 1).xfer, time(limit.batch + 1).gpu);
}

// Between all compressed caches alone and all full caches as well.
RC_GTEST_PROP(LargestBatch, VeriCacheIsBetweenLossyAndLockstep, ()) {
  const Workload workload{
      .full_cache = {kGiga * static_cast<std::uint64_t>(*rc::gen::inRange(1, 8))},
      .compression = *rc::gen::inRange(5, 60) / 100.0,
      .draft_length = *rc::gen::inRange(1, 60)};
  const auto by_memory = [&](Policy policy) {
    return LargestBatch(policy, Workstation(), Weights(48), workload).by_memory;
  };
  RC_ASSERT(by_memory(Policy::kLockstep) <= by_memory(Policy::kVeriCache));
  RC_ASSERT(by_memory(Policy::kVeriCache) <= by_memory(Policy::kLossy));
}

TEST(BestDraftLengthFor, BeatsItsNeighbours) {
  const AcceptanceModel acceptance = AcceptanceModel::FromChance(0.97);
  const ModelShape model = FindModelShape("mistral-24b");
  Workload workload{.full_cache = model.kv_per_token() * 30'000};
  const int best =
      BestDraftLengthFor(Workstation(), model, workload, acceptance, std::nullopt, 100);
  const auto speed = [&](int x) {
    workload.draft_length = x;
    return PredictThroughput(Policy::kVeriCache, Workstation(), model, workload, acceptance,
                             std::nullopt)
        .tokens_per_s;
  };
  EXPECT_GT(best, 1);
  EXPECT_LT(best, 100);
  for (int x = 1; x <= 100; ++x) {
    EXPECT_LE(speed(x), speed(best));
  }
}

// Both pools take a request in the same time, by definition of the ratio.
TEST(PredictRemote, RatioBalancesThePools) {
  const ModelShape model = FindModelShape("llama-70b");
  const Workload workload{
      .full_cache = model.kv_per_token() * 40'000, .compression = 0.28, .draft_length = 40};
  const RemoteRequest remote = PredictRemote(FindDevice("2xh100-nvl"), model, workload,
                                             AcceptanceModel::FromShare(0.9, 40), 1, 500);
  const double far = remote.startup + remote.cycles * 40 * remote.decode;
  const double near = remote.cycles * (remote.reload + remote.forward);
  EXPECT_NEAR(far / remote.devices_ratio, near, 1e-9);
  EXPECT_GT(remote.full, remote.total);
}

}  // namespace
}  // namespace vericache
