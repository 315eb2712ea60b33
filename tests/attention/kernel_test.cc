// Every instruction set's kernel against attention in float64, for every format.
#include "attention/kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/kvquant.h"
#include "unit_support/attention_oracle.h"
#include "unit_support/random_data.h"
#include "unit_support/rope.h"

namespace vericache {
namespace {

using testing::OracleResult;
using testing::OwnedPartial;
using testing::RandomData;
using testing::VisibleRows;

const AttentionKernel* FindKernel(const std::string& name) {
  for (const AttentionKernel& kernel : AvailableKernels()) {
    if (kernel.name == name) {
      return &kernel;
    }
  }
  return nullptr;
}

// The kernels that a usual x86-64 machine may have, and what else this one has.
std::vector<std::string> KernelNames() {
  std::vector<std::string> names = {"scalar", "SSE4", "AVX2", "AVX512", "AMX"};
  for (const AttentionKernel& kernel : AvailableKernels()) {
    if (std::find(names.begin(), names.end(), kernel.name) == names.end()) {
      names.push_back(kernel.name);
    }
  }
  return names;
}

// Pages full of random rows, written a group at a time; every seventh key channel may be large.
class Pages {
 public:
  Pages(KvFormat format, int kv_heads, int head_dim, int slots, bool outliers, RandomData& random)
      : layout_(format, {.layers = 1, .kv_heads = kv_heads, .head_dim = head_dim}), slots_(slots) {
    const std::size_t group = Size(kGroupSlots * head_dim);
    for (int first = 0; first < slots; first += kPageSlots) {
      auto& page = memory_.emplace_back(layout_.page_bytes());
      for (int head = 0; head < kv_heads; ++head) {
        for (int half = 0; half < kPageSlots && first + half < slots; half += kGroupSlots) {
          WriteGroup(layout_, page.data(), head, half,
                     outliers ? random.WithOutliers(group, head_dim, 7) : random.Floats(group),
                     random.Floats(group));
        }
      }
    }
    for (auto& page : memory_) {
      addresses_.push_back(page.data());
    }
  }

  SegmentView view() const {
    return {.layout = &layout_, .pages = addresses_, .begin = 0, .end = slots_};
  }

 private:
  PageLayout layout_;
  int slots_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> addresses_;
};

std::vector<float> ScaledQueries(int count, int head_dim, RandomData& random) {
  return random.Floats(Size(count * head_dim), 1.0F / std::sqrt(static_cast<float>(head_dim)));
}

// Runs a kernel over [begin, end) of a segment, chunk by chunk; the result is finished.
OwnedPartial RunKernel(const AttentionKernel& kernel, const SegmentView& segment, int begin,
                       int end, int head, std::span<const float> queries,
                       std::span<const int> visible) {
  const int head_dim = segment.layout->head_dim();
  const auto count = static_cast<int>(visible.size());
  // What is left of an earlier use must not matter.
  std::vector<float> workspace(WorkspaceFloats(head_dim), std::nanf(""));
  OwnedPartial total(count, head_dim);
  OwnedPartial part(count, head_dim);
  while (begin < end) {
    const int chunk_end = std::min(end, (begin / kChunkSlots + 1) * kChunkSlots);
    std::fill(part.max.begin(), part.max.end(), std::nanf(""));
    std::fill(part.sum.begin(), part.sum.end(), std::nanf(""));
    std::fill(part.out.begin(), part.out.end(), std::nanf(""));
    kernel.attend_chunk({.segment = segment,
                         .begin = begin,
                         .end = chunk_end,
                         .kv_head = head,
                         .queries = queries,
                         .visible = visible},
                        workspace, part.view());
    kernel.merge(part.view(), total.view());
    begin = chunk_end;
  }
  kernel.finish(total.view());
  return total;
}

void ExpectWithinBound(const AttentionKernel& kernel, const SegmentView& segment, int begin,
                       int end, int head, std::span<const float> queries,
                       std::span<const int> visible, const std::vector<float>& out) {
  const std::size_t dim = Size(segment.layout->head_dim());
  for (std::size_t q = 0; q < visible.size(); ++q) {
    VisibleRows rows(segment.layout->head_dim());
    rows.Add(segment, head, begin, std::min(end, visible[q]));
    const OracleResult expected = rows.Attend(queries.subspan(q * dim, dim), kernel.product_error);
    for (std::size_t c = 0; c < dim; ++c) {
      ASSERT_NEAR(static_cast<double>(out[q * dim + c]), expected.out[c], expected.bound)
          << "query " << q << " of " << visible.size() << ", channel " << c;
    }
  }
}

class EveryKernel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    kernel_ = FindKernel(GetParam());
    if (kernel_ == nullptr) {
      GTEST_SKIP() << "skipped: no " << GetParam() << " here";
    }
  }

  const AttentionKernel* kernel_ = nullptr;
};

// Every format for keys and, beside another one, for values: kernels take each by itself.
std::vector<KvFormat> EveryFormat(RandomData& random) {
  std::vector<KvFormat> formats;
  const int count = static_cast<int>(kNumberFormats.size());
  const int shift = random.Below(count);
  for (int i = 0; i < count; ++i) {
    formats.push_back(
        {kNumberFormats[Size(i)].format, kNumberFormats[Size((i + shift) % count)].format});
  }
  return formats;
}

std::string NameOf(KvFormat format) {
  return std::string(Name(format.keys)) + " keys, " + std::string(Name(format.values)) + " values";
}

TEST_P(EveryKernel, AgreesWithFloat64ForEveryFormat) {
  RandomData random(7);
  for (int round = 0; round < 3; ++round) {
    for (const KvFormat format : EveryFormat(random)) {
      for (const bool outliers : {false, true}) {
        SCOPED_TRACE(NameOf(format) + (outliers ? ", outliers" : ""));
        const Pages pages(format, 2, 64, 200, outliers, random);
        const int count = 1 + random.Below(9);
        const auto queries = ScaledQueries(count, 64, random);
        std::vector<int> visible;
        for (int q = 0; q < count; ++q) {
          visible.push_back(1 + random.Below(200));
        }
        const auto result = RunKernel(*kernel_, pages.view(), 0, 200, 1, queries, visible);
        ExpectWithinBound(*kernel_, pages.view(), 0, 200, 1, queries, visible, result.out);
      }
    }
  }
}

// Keys held before RoPE, of positions that follow each other or lie apart, and a first token that
// is kept as it came.
TEST_P(EveryKernel, AgreesWithFloat64ForKeysBeforeRope) {
  RandomData random(12);
  for (const int dims : {64, 32}) {
    for (const bool neox : {false, true}) {
      const auto kvquant = std::make_shared<KvQuant>();
      kvquant->rope = testing::MakeRopeTable(dims, neox, 100'000, 1.1);
      for (const NumberFormat format :
           {NumberFormat::kKvQuant4, NumberFormat::kKvQuant3, NumberFormat::kKvQuant2}) {
        for (const int apart : {0, 1, 700}) {
          SCOPED_TRACE(std::string(Name(format)) + ", " + std::to_string(apart) + " apart");
          PagePool pool(Bytes{1U << 22U});
          KvCache cache(pool, PageKind::kResident, {.layers = 1, .kv_heads = 2, .head_dim = 64}, {},
                        PackedFormats({{{format, format}}}, {kvquant}));
          int position = random.Below(1000);
          for (int group = 0; group < 4; ++group) {
            std::vector<int> positions;
            for (int i = 0; i < 2 * kGroupSlots; ++i) {
              positions.push_back(position + i % kGroupSlots * (1 + random.Below(apart + 1)));
            }
            position = positions[kGroupSlots - 1] + 1;
            ASSERT_TRUE(cache.AppendGroup(LayerId{0}, 0, random.Floats(2 * kGroupSlots * 64),
                                          random.Floats(2 * kGroupSlots * 64), positions));
          }
          const SegmentView view = cache.packed_view(LayerId{0}, 0);
          const int count = 1 + random.Below(9);
          const auto queries = ScaledQueries(count, 64, random);
          const std::vector<int> visible(Size(count), view.end);
          const auto result = RunKernel(*kernel_, view, 0, view.end, 1, queries, visible);
          ExpectWithinBound(*kernel_, view, 0, view.end, 1, queries, visible, result.out);
        }
      }
    }
  }
}

TEST_P(EveryKernel, AgreesWithFloat64ForEveryHeadSize) {
  RandomData random(8);
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const KvFormat format : {KvFormat{NumberFormat::kF16, NumberFormat::kBF16},
                                  KvFormat{NumberFormat::kQ8, NumberFormat::kQ4},
                                  KvFormat{NumberFormat::kKivi4, NumberFormat::kKivi2},
                                  KvFormat{NumberFormat::kRotate2, NumberFormat::kTurbo4},
                                  KvFormat{NumberFormat::kTurbo3, NumberFormat::kTurbo3},
                                  KvFormat{NumberFormat::kKvQuant3, NumberFormat::kKvQuant4}}) {
      if (IsGrouped(format) && head_dim % kGroupSlots != 0) {
        continue;
      }
      SCOPED_TRACE(head_dim);
      const Pages pages(format, 1, head_dim, 100, false, random);
      const auto queries = ScaledQueries(4, head_dim, random);
      const std::vector<int> visible = {100, 3, 64, 99};
      const auto result = RunKernel(*kernel_, pages.view(), 0, 100, 0, queries, visible);
      ExpectWithinBound(*kernel_, pages.view(), 0, 100, 0, queries, visible, result.out);
    }
  }
}

TEST_P(EveryKernel, AgreesWithFloat64ForEveryNumberOfQueries) {
  RandomData random(9);
  const Pages pages({NumberFormat::kBF16, NumberFormat::kKivi4}, 1, 32, 70, false, random);
  for (int count = 1; count <= kMaxQueryBlock; ++count) {
    SCOPED_TRACE(count);
    const auto queries = ScaledQueries(count, 32, random);
    std::vector<int> visible;
    for (int q = 0; q < count; ++q) {
      visible.push_back(70 - count + q + 1);
    }
    const auto result = RunKernel(*kernel_, pages.view(), 0, 70, 0, queries, visible);
    ExpectWithinBound(*kernel_, pages.view(), 0, 70, 0, queries, visible, result.out);
  }
}

TEST_P(EveryKernel, BeginsAndEndsAnywhereInAHalfPage) {
  RandomData random(10);
  const Pages pages({NumberFormat::kF16, NumberFormat::kF16}, 1, 32, 160, false, random);
  const auto queries = ScaledQueries(2, 32, random);
  for (int i = 0; i < 200; ++i) {
    const int begin = random.Below(159);
    const int end = begin + 1 + random.Below(160 - begin);
    const std::vector<int> visible = {end, begin + 1 + random.Below(end - begin)};
    SCOPED_TRACE(std::to_string(begin) + " to " + std::to_string(end));
    const auto result = RunKernel(*kernel_, pages.view(), begin, end, 0, queries, visible);
    ExpectWithinBound(*kernel_, pages.view(), begin, end, 0, queries, visible, result.out);
  }
}

TEST_P(EveryKernel, MergesChunksIntoTheWhole) {
  RandomData random(11);
  for (const KvFormat format : {KvFormat{NumberFormat::kF16, NumberFormat::kF16},
                                KvFormat{NumberFormat::kKivi4, NumberFormat::kKivi4}}) {
    // Without outliers, so that attention is spread and no slot can be missed or doubled.
    const Pages pages(format, 1, 64, 1300, false, random);
    const auto queries = ScaledQueries(7, 64, random);
    const std::vector<int> visible = {1300, 1, 511, 512, 513, 1024, 1025};
    const auto result = RunKernel(*kernel_, pages.view(), 0, 1300, 0, queries, visible);
    ExpectWithinBound(*kernel_, pages.view(), 0, 1300, 0, queries, visible, result.out);
  }
}

TEST_P(EveryKernel, AQueryThatSeesNothingHasAnEmptyPartial) {
  RandomData random(12);
  const Pages pages({NumberFormat::kF16, NumberFormat::kF16}, 1, 32, 128, false, random);
  const auto queries = ScaledQueries(3, 32, random);
  std::vector<float> workspace(WorkspaceFloats(32), std::nanf(""));
  for (const std::vector<int>& visible :
       {std::vector<int>{40, 0, 100}, std::vector<int>{33, 40, 12}, std::vector<int>{0, 0, 0}}) {
    OwnedPartial part(3, 32);
    kernel_->attend_chunk({.segment = pages.view(),
                           .begin = 40,
                           .end = 128,
                           .kv_head = 0,
                           .queries = queries,
                           .visible = visible},
                          workspace, part.view());
    for (std::size_t q = 0; q < 3; ++q) {
      if (visible[q] <= 40) {
        EXPECT_EQ(part.max[q], -std::numeric_limits<float>::infinity());
        EXPECT_EQ(part.sum[q], 0.0F);
        const auto out = part.out.begin() + static_cast<std::ptrdiff_t>(q * 32);
        EXPECT_EQ(std::vector<float>(out, out + 32), std::vector<float>(32));
      } else {
        EXPECT_GE(part.sum[q], 1.0F);
      }
    }
  }
}

TEST_P(EveryKernel, MergingAnEmptyPartialChangesNothing) {
  RandomData random(13);
  OwnedPartial total(2, 32);
  total.max = {1.5F, -200.0F};
  total.sum = {3.0F, 1.0F};
  total.out = random.Floats(64);
  OwnedPartial empty(2, 32);
  const OwnedPartial before = total;
  kernel_->merge(empty.view(), total.view());
  EXPECT_EQ(total.max, before.max);
  EXPECT_EQ(total.sum, before.sum);
  EXPECT_EQ(total.out, before.out);
  kernel_->merge(total.view(), empty.view());
  EXPECT_EQ(empty.max, before.max);
  EXPECT_EQ(empty.sum, before.sum);
  EXPECT_EQ(empty.out, before.out);
  OwnedPartial nothing(2, 32);
  OwnedPartial also_nothing(2, 32);
  kernel_->merge(nothing.view(), also_nothing.view());
  EXPECT_EQ(also_nothing.sum, std::vector<float>(2));
  EXPECT_EQ(also_nothing.out, std::vector<float>(64));
}

// Slots that no query sees hold whatever was left there: it must not leak.
TEST_P(EveryKernel, GarbageInUnseenSlotsNeverLeaks) {
  RandomData random(14);
  const float garbage[] = {std::nanf(""), std::numeric_limits<float>::infinity(), 3e38F};
  for (const float number : garbage) {
    const PageLayout layout({NumberFormat::kF32, NumberFormat::kF32},
                            {.layers = 1, .kv_heads = 1, .head_dim = 32});
    std::vector<std::byte> page(layout.page_bytes());
    for (int slot = 0; slot < kPageSlots; ++slot) {
      const bool seen = slot >= 5 && slot < 45;
      const std::vector<float> bad(32, number);
      WriteSlot(layout, page.data(), 0, slot, seen ? random.Floats(32) : bad,
                seen ? random.Floats(32) : bad);
    }
    std::byte* const address = page.data();
    const SegmentView view{.layout = &layout, .pages = {&address, 1}, .begin = 5, .end = 45};
    for (const int count : {1, 2, 7}) {
      const auto queries = ScaledQueries(count, 32, random);
      const std::vector<int> visible(Size(count), 45);
      const auto result = RunKernel(*kernel_, view, 5, 45, 0, queries, visible);
      ExpectWithinBound(*kernel_, view, 5, 45, 0, queries, visible, result.out);
    }
  }
}

// A slot that one query of a block sees and another must not: its infinity or NaN stays with the
// one.
TEST_P(EveryKernel, GarbageReachesOnlyQueriesThatSeeIt) {
  RandomData random(16);
  for (const float number : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const int count : {2, 7, kMaxQueryBlock}) {
      const PageLayout layout({NumberFormat::kF32, NumberFormat::kF32},
                              {.layers = 1, .kv_heads = 1, .head_dim = 32});
      std::vector<std::byte> page(layout.page_bytes());
      const int bad_slot = 39;
      for (int slot = 0; slot < kPageSlots; ++slot) {
        const std::vector<float> bad(32, number);
        WriteSlot(layout, page.data(), 0, slot, slot == bad_slot ? bad : random.Floats(32),
                  slot == bad_slot ? bad : random.Floats(32));
      }
      std::byte* const address = page.data();
      const SegmentView view{.layout = &layout, .pages = {&address, 1}, .begin = 0, .end = 64};
      const auto queries = ScaledQueries(count, 32, random);
      std::vector<int> visible(Size(count), bad_slot);
      visible.back() = bad_slot + 1;
      const auto result = RunKernel(*kernel_, view, 0, 64, 0, queries, visible);
      ExpectWithinBound(*kernel_, view, 0, 64, 0,
                        std::span(queries).subspan(0, Size(count - 1) * 32),
                        std::span(visible).subspan(0, Size(count - 1)), result.out);
    }
  }
}

TEST_P(EveryKernel, OneOfManyQueriesGetsTheBitsOfALoneOne) {
  RandomData random(15);
  for (const KvFormat format : EveryFormat(random)) {
    const Pages pages(format, 1, 64, 700, false, random);
    const int count = 1 + random.Below(kMaxQueryBlock);
    const auto queries = ScaledQueries(count, 64, random);
    std::vector<int> visible;
    for (int q = 0; q < count; ++q) {
      visible.push_back(1 + random.Below(700));
    }
    const auto together = RunKernel(*kernel_, pages.view(), 0, 700, 0, queries, visible);
    for (int q = 0; q < count; ++q) {
      const auto alone =
          RunKernel(*kernel_, pages.view(), 0, 700, 0, std::span(queries).subspan(Size(q) * 64, 64),
                    std::span(visible).subspan(Size(q), 1));
      const auto first = together.out.begin() + q * 64;
      ASSERT_EQ(alone.out, std::vector<float>(first, first + 64))
          << NameOf(format) << ", query " << q << " of " << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryKernel, ::testing::ValuesIn(KernelNames()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace vericache
