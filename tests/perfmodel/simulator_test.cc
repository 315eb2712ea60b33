// The scheduler under a virtual clock: what is moved and emitted adds up, and staggering pays.
#include "perfmodel/simulator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "base/error.h"

namespace vericache {
namespace {

SimulationOptions Options() {
  SimulationOptions options;
  options.device = FindDevice("rtx-pro-6000");
  options.model = FindModelShape("mistral-24b");
  options.acceptance = AcceptanceModel::FromShare(0.85, 30);
  options.draft_length = 30;
  options.context = 25'000;
  options.requests = 10;
  options.new_tokens = 400;
  return options;
}

RC_GTEST_PROP(Simulate, AddsUp, ()) {
  SimulationOptions options = Options();
  options.policy =
      *rc::gen::element(Policy::kFull, Policy::kLossy, Policy::kVeriCache, Policy::kLockstep);
  options.requests = *rc::gen::inRange(1, 30);
  options.new_tokens = *rc::gen::inRange(1, 100);
  options.context = *rc::gen::inRange(1, 40'000);
  options.spread = *rc::gen::element(0.0, 0.5);
  options.rate = *rc::gen::element(0.0, 0.5, 5.0);
  options.draft_length = *rc::gen::inRange(1, 60);
  options.adaptive = *rc::gen::arbitrary<bool>();
  options.stored_contexts = *rc::gen::arbitrary<bool>();
  options.acceptance = AcceptanceModel::FromChance(*rc::gen::element(0.0, 0.5, 0.99));
  options.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const SimulationResult result =
      Simulate(options, [&](const TimelineSpan& span) { RC_ASSERT(span.end >= span.begin); });
  RC_ASSERT(result.latencies.size() == static_cast<std::size_t>(options.requests));
  for (std::size_t i = 0; i < result.latencies.size(); ++i) {
    RC_ASSERT(result.first_token[i] > 0.0);
    RC_ASSERT(result.latencies[i] >= result.first_token[i]);
  }
  if (options.spread == 0.0) {
    RC_ASSERT(result.tokens == std::int64_t{options.requests} * options.new_tokens);
  }
  RC_ASSERT(result.memory_peak <= result.memory_room);
  // The link's time is that of the bytes moved.
  const double moved = static_cast<double>(result.link_bytes.count) / options.device.link_bandwidth;
  RC_ASSERT(std::abs(result.link_busy * result.seconds - moved) <= 1e-9 * (1.0 + moved));
  RC_ASSERT(result.link_busy <= 1.0 + 1e-9);
}

TEST(Simulate, TheSameSeedGivesTheSameRun) {
  SimulationOptions options = Options();
  options.rate = 0.5;
  EXPECT_EQ(Simulate(options).seconds, Simulate(options).seconds);
  const double before = Simulate(options).seconds;
  options.seed = 2;
  EXPECT_NE(Simulate(options).seconds, before);
}

// The review's picture: in lock-step the link serves ten verifies one after the other, and ten full
// caches are in fast memory.
TEST(Simulate, StaggeredBeatsLockstep) {
  SimulationOptions options = Options();
  const SimulationResult staggered = Simulate(options);
  options.policy = Policy::kLockstep;
  const SimulationResult lockstep = Simulate(options);
  EXPECT_GT(staggered.tokens_per_s(), 1.3 * lockstep.tokens_per_s());
  EXPECT_LT(2 * staggered.memory_peak.count, lockstep.memory_peak.count);
  EXPECT_LT(10 * staggered.counts.late_reloads, staggered.counts.reloads);
}

// In a steady state it is what the equations say.
TEST(Simulate, AgreesWithTheEquations) {
  SimulationOptions options = Options();
  options.new_tokens = 3000;
  options.requests = 8;
  const Workload workload{
      .full_cache = options.model.kv_per_token() *
                    static_cast<std::uint64_t>(options.context + options.new_tokens / 2),
      .compression = options.compression,
      .draft_length = options.draft_length};
  for (const Policy policy : {Policy::kFull, Policy::kLossy, Policy::kVeriCache}) {
    options.policy = policy;
    const double predicted = PredictThroughput(policy, options.device, options.model, workload,
                                               options.acceptance, options.requests)
                                 .tokens_per_s;
    EXPECT_NEAR(Simulate(options).tokens_per_s() / predicted, 1.0, 0.1) << Name(policy);
  }
}

TEST(Simulate, RefusesWhatCannotFit) {
  SimulationOptions options = Options();
  options.context = 400'000;
  EXPECT_THROW(Simulate(options), UserError);
  options = Options();
  options.model = FindModelShape("llama-70b");
  EXPECT_THROW(Simulate(options), UserError);
}

}  // namespace
}  // namespace vericache
