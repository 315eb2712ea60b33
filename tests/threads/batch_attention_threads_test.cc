// BatchAttention by several threads: the bits of one thread, and no data race (thread sanitizer).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <thread>
#include <vector>

#include "attention/batch_attention.h"
#include "unit_support/batch_case.h"

namespace vericache {
namespace {

using testing::AllAtOnce;
using testing::AnyBatch;
using testing::AnyPartition;
using testing::Batch;
using testing::BatchSpec;
using testing::RandomData;

void ExpectBitsOfOneThread(const BatchSpec& spec, int threads, RandomData& random) {
  const AttentionKernel& kernel = AvailableKernels().back();
  Batch one(spec);
  one.Run(kernel, AllAtOnce(spec), 1);
  Batch several(spec);
  several.Run(kernel, AnyPartition(spec, random), threads, 2);
  for (std::size_t i = 0; i < spec.requests.size(); ++i) {
    for (int layer = 0; layer < spec.geometry.layers; ++layer) {
      RC_ASSERT(one.out(i, layer) == several.out(i, layer));
    }
  }
  for (const float number : several.padding()) {
    RC_ASSERT(number == 0.0F);
  }
}

RC_GTEST_PROP(BatchAttentionThreads, GiveTheBitsOfOneThread, (std::uint32_t seed)) {
  RandomData random(seed);
  const BatchSpec spec = AnyBatch(random, 4, 150, 12);
  ExpectBitsOfOneThread(spec, 2 + random.Below(2), random);
}

// Many rows over a long cache, as in a prefill: whole blocks of several chunks each.
RC_GTEST_PROP(BatchAttentionThreads, GiveTheBitsOfOneThreadWhereBlocksAreWhole,
              (std::uint32_t seed)) {
  RandomData random(seed);
  BatchSpec spec = AnyBatch(random, 1, 1, 3);
  for (auto& request : spec.requests) {
    request.cached = 520 + random.Below(100);
    request.residual = 700;
    request.rows = 200;
  }
  ExpectBitsOfOneThread(spec, 2, random);
}

// Few rows over a long cache: the blocks are split, and whoever finishes the last chunk merges.
RC_GTEST_PROP(BatchAttentionThreads, GiveTheBitsOfOneThreadWhereBlocksAreSplit,
              (std::uint32_t seed)) {
  RandomData random(seed);
  BatchSpec spec = AnyBatch(random, 2, 1, 3);
  for (auto& request : spec.requests) {
    request.cached = 520 + random.Below(600);
    request.residual = random.Below(600);
  }
  ExpectBitsOfOneThread(spec, 2 + random.Below(2), random);
}

// Kernels, too, are made once, whichever thread asks first.
TEST(AvailableKernels, MayBeAskedForByAnyThread) {
  std::vector<std::jthread> threads;
  std::vector<const AttentionKernel*> seen(4);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&seen, i] { seen[i] = &AvailableKernels().back(); });
  }
  threads.clear();
  for (const AttentionKernel* kernel : seen) {
    EXPECT_EQ(kernel, seen[0]);
  }
}

}  // namespace
}  // namespace vericache
