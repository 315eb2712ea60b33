// BatchAttention by one thread: right, and bit-equal however rows are put together. (tests/threads
// has the same with several threads.)
#include "attention/batch_attention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "unit_support/attention_oracle.h"
#include "unit_support/batch_case.h"

namespace vericache {
namespace {

using testing::AllAtOnce;
using testing::AnyBatch;
using testing::AnyPartition;
using testing::Batch;
using testing::BatchSpec;
using testing::Iteration;
using testing::OracleResult;
using testing::RandomData;
using testing::VisibleRows;

// Mostly the widest, which is the fastest and the one in use; the slow reference for few rows only.
const AttentionKernel& AnyKernel(RandomData& random, const BatchSpec& spec) {
  int work = 0;
  for (const auto& request : spec.requests) {
    work += request.rows * (request.cached + request.rows);
  }
  const auto& kernels = AvailableKernels();
  const auto& any = kernels[Size(random.Below(static_cast<int>(kernels.size())))];
  return random.Below(2) == 0 || (any.name == "scalar" && work > 1000) ? kernels.back() : any;
}

// Each row of a request sees what was cached and the rows up to itself.
void ExpectRight(const BatchSpec& spec, const AttentionKernel& kernel, const Batch& batch,
                 std::size_t request) {
  const CacheGeometry& geometry = spec.geometry;
  const std::size_t dim = Size(geometry.head_dim);
  const int rows = spec.requests[request].rows;
  const float scale = 1.0F / std::sqrt(static_cast<float>(geometry.head_dim));
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const SegmentView tail = batch.cache(request).tail_view(LayerId{layer});
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < spec.heads; ++head) {
        const int kv_head = head / (spec.heads / geometry.kv_heads);
        VisibleRows visible(geometry.head_dim, /*rotated_back=*/true);
        for (int part = 0; part < batch.cache(request).packed_parts(LayerId{layer}); ++part) {
          const SegmentView packed = batch.cache(request).packed_view(LayerId{layer}, part);
          visible.Add(packed, kv_head, packed.begin, packed.end);
        }
        visible.Add(tail, kv_head, tail.begin, tail.end - rows + row + 1);
        const std::size_t at = Size(row) * batch.query_floats() + Size(head) * dim;
        std::vector<float> query(dim);
        for (std::size_t c = 0; c < dim; ++c) {
          query[c] = batch.queries(request, layer)[at + c] * scale;
        }
        const OracleResult expected = visible.Attend(query, kernel.product_error);
        for (std::size_t c = 0; c < dim; ++c) {
          RC_ASSERT(std::abs(static_cast<double>(batch.out(request, layer)[at + c]) -
                             expected.out[c]) <= expected.bound);
        }
      }
    }
  }
}

void ExpectSame(const BatchSpec& spec, const Batch& a, const Batch& b) {
  for (std::size_t i = 0; i < spec.requests.size(); ++i) {
    for (int layer = 0; layer < spec.geometry.layers; ++layer) {
      RC_ASSERT(a.out(i, layer) == b.out(i, layer));
    }
  }
}

RC_GTEST_PROP(BatchAttention, AgreesWithFloat64OverPackedAndTailSlots, (std::uint32_t seed)) {
  RandomData random(seed);
  const BatchSpec spec = AnyBatch(random, 3, random.Below(8) == 0 ? 1200 : 150, 5);
  Batch batch(spec);
  const AttentionKernel& kernel = AnyKernel(random, spec);
  batch.Run(kernel, AllAtOnce(spec), 1);
  for (std::size_t i = 0; i < spec.requests.size(); ++i) {
    ExpectRight(spec, kernel, batch, i);
  }
}

RC_GTEST_PROP(BatchAttention, ARowsBitsDoNotDependOnHowRowsAreComputedTogether,
              (std::uint32_t seed)) {
  RandomData random(seed);
  const BatchSpec spec = AnyBatch(random, 3, random.Below(10) == 0 ? 1300 : 200, 60);
  const AttentionKernel& kernel = AnyKernel(random, spec);
  Batch together(spec);
  together.Run(kernel, AllAtOnce(spec), 1);
  Batch apart(spec);
  apart.Run(kernel, AnyPartition(spec, random), 1);
  ExpectSame(spec, together, apart);
}

RC_GTEST_PROP(BatchAttention, ARowsBitsAreThoseOfOneRowAtATime, (std::uint32_t seed)) {
  RandomData random(seed);
  BatchSpec spec = AnyBatch(random, 1, random.Below(10) == 0 ? 1300 : 200, 40);
  const AttentionKernel& kernel = AnyKernel(random, spec);
  Batch together(spec);
  together.Run(kernel, AllAtOnce(spec), 1);
  Batch single(spec);
  single.Run(kernel, std::vector<Iteration>(Size(spec.requests[0].rows), Iteration{1}), 1);
  ExpectSame(spec, together, single);
}

RC_GTEST_PROP(BatchAttention, ARowsBitsDoNotDependOnOtherRequests, (std::uint32_t seed)) {
  RandomData random(seed);
  const BatchSpec spec = AnyBatch(random, 5, random.Below(10) == 0 ? 700 : 100, 10);
  const AttentionKernel& kernel = AnyKernel(random, spec);
  Batch together(spec);
  together.Run(kernel, AllAtOnce(spec), 1);
  for (std::size_t i = 0; i < spec.requests.size(); ++i) {
    BatchSpec lone = spec;
    lone.requests = {spec.requests[i]};
    Batch alone(lone);
    alone.Run(kernel, AllAtOnce(lone), 1);
    for (int layer = 0; layer < spec.geometry.layers; ++layer) {
      RC_ASSERT(alone.out(0, layer) == together.out(i, layer));
    }
  }
}

RC_GTEST_PROP(BatchAttention, GivesPaddingRowsZeros, (std::uint32_t seed)) {
  RandomData random(seed);
  const BatchSpec spec = AnyBatch(random, 3, 100, 4);
  const int padding = 1 + random.Below(9);
  Batch batch(spec);
  batch.Run(AvailableKernels().back(), AllAtOnce(spec), 1, padding);
  RC_ASSERT(batch.padding() ==
            std::vector<float>(Size(padding * spec.geometry.layers) * batch.query_floats()));
  Batch plain(spec);
  plain.Run(AvailableKernels().back(), AllAtOnce(spec), 1);
  ExpectSame(spec, batch, plain);
}

RC_GTEST_PROP(BatchAttention, TapsRecordTheWindowsQueriesWhateverTheChunks, (std::uint32_t seed)) {
  RandomData random(seed);
  BatchSpec spec = AnyBatch(random, 3, 1, 50);
  std::vector<std::unique_ptr<Taps>> taps;
  std::vector<Taps*> pointers;
  for (const auto& request : spec.requests) {
    const int window = random.Below(request.rows + 1);
    taps.push_back(std::make_unique<Taps>(TapNeeds{.query_window = window}, spec.geometry,
                                          spec.heads, request.rows, 1));
    pointers.push_back(random.Below(5) == 0 ? nullptr : taps.back().get());
  }
  Batch batch(spec);
  batch.Run(AvailableKernels().back(), AnyPartition(spec, random), 1, 0, pointers);
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (pointers[i] == nullptr || !pointers[i]->queries) {
      continue;
    }
    const QueryTap& tap = *pointers[i]->queries;
    for (int layer = 0; layer < spec.geometry.layers; ++layer) {
      for (int row = tap.first(); row < spec.requests[i].rows; ++row) {
        const auto from = batch.queries(i, layer).begin() +
                          static_cast<std::ptrdiff_t>(Size(row) * batch.query_floats());
        RC_ASSERT(std::ranges::equal(
            tap.at(LayerId{layer}, row),
            std::ranges::subrange(from, from + static_cast<std::ptrdiff_t>(batch.query_floats()))));
      }
    }
  }
}

TEST(BatchAttention, AnIterationWithoutTasksIsAllPadding) {
  const BatchSpec spec;
  Batch batch(spec);
  batch.Run(AvailableKernels().back(), {Iteration{}}, 1, 3);
  EXPECT_EQ(batch.padding(), std::vector<float>(2 * 3 * batch.query_floats()));
}

TEST(QueryTap, HoldsTheNewestFromItsFirstOn) {
  QueryTap tap(2, 2, 4, Position{5}, 3);
  EXPECT_FALSE(tap.Wants(4));
  EXPECT_TRUE(tap.Wants(5));
  EXPECT_TRUE(tap.Wants(8));
  for (int position = 5; position < 12; ++position) {
    std::ranges::fill(tap.at(LayerId{1}, position), static_cast<float>(position));
  }
  for (int position = 9; position < 12; ++position) {
    EXPECT_EQ(tap.at(LayerId{1}, position)[7], static_cast<float>(position));
  }
}

TEST(BatchAttention, WritesTheRowsKeysAndValuesIntoTheCache) {
  BatchSpec spec;
  spec.tail = {NumberFormat::kF32, NumberFormat::kF32};
  spec.requests = {{.cached = 62, .residual = 0, .rows = 5, .seed = 3}};
  Batch batch(spec);
  batch.Run(AvailableKernels().back(), AllAtOnce(spec), 1);
  std::vector<float> key(32);
  std::vector<float> value(32);
  for (int layer = 0; layer < 2; ++layer) {
    for (int i = 0; i < 5 * 2; ++i) {  // [row][head]
      batch.cache(0).ReadTail(LayerId{layer}, 62 + i / 2, i % 2, key, value);
      EXPECT_TRUE(std::equal(key.begin(), key.end(), batch.keys(0, layer).begin() + i * 32));
      EXPECT_TRUE(std::equal(value.begin(), value.end(), batch.values(0, layer).begin() + i * 32));
    }
  }
}

}  // namespace
}  // namespace vericache
