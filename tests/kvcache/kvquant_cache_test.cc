// Caches whose parts are in KVQuant formats: what they know of positions, ranges and first tokens.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kvcache/kv_cache.h"
#include "kvcache/kvquant.h"
#include "unit_support/random_data.h"
#include "unit_support/rope.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr CacheGeometry kQuantGeometry = {.layers = 2, .kv_heads = 2, .head_dim = 32};
constexpr KvFormat kTail = {NumberFormat::kF32, NumberFormat::kF16};
constexpr KvFormat kPacked = {NumberFormat::kKvQuant4, NumberFormat::kKvQuant4};
constexpr LayerId kLayer{1};

float ChannelMean(int channel) { return static_cast<float>(channel % 5) * 3.0F; }

PackedFormats WithRope() {
  const auto kvquant = std::make_shared<KvQuant>();
  kvquant->rope = testing::MakeRopeTable(32, /*neox=*/true, 4096);
  for (int i = 0; i < kQuantGeometry.kv_heads * kQuantGeometry.head_dim; ++i) {
    kvquant->key_centers.push_back(ChannelMean(i % kQuantGeometry.head_dim));
    kvquant->key_halves.push_back(1.2F);
  }
  return PackedFormats({{kPacked}, {kPacked}}, {kvquant, kvquant});
}

std::vector<float> Key(const SegmentView& view, int head, int slot) {
  std::vector<float> row(32);
  KeyAt(view, head, slot, row);
  return row;
}

std::vector<float> Value(const SegmentView& view, int head, int slot) {
  std::vector<float> row(32);
  ValueAt(view, head, slot, row);
  return row;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0.0;
  double length = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += std::pow(a[i] - b[i], 2.0);
    length += std::pow(a[i], 2.0);
  }
  return std::sqrt(square / length);
}

// Rows that before RoPE are normal around a mean of their channel: only what is turned back by the
// right position fits the ranges of WithRope.
void FillWithKeys(KvCache& cache, const KvQuant& kvquant, int rows, RandomData& random) {
  ASSERT_TRUE(cache.Extend(rows));
  for (int i = 0; i < kQuantGeometry.layers; ++i) {
    const int first = cache.tail_slots(LayerId{i}) - rows;
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < kQuantGeometry.kv_heads; ++head) {
        std::vector<float> key = random.Floats(32, 0.3F);
        for (std::size_t c = 0; c < key.size(); ++c) {
          key[c] += ChannelMean(static_cast<int>(c));
        }
        kvquant.rope->Turn(key, first + row);
        cache.Write(LayerId{i}, first + row, head, key, random.Floats(32), first + row);
      }
    }
  }
}

TEST(KvQuantCache, PackedKeysAreThoseOfTheirPositions) {
  PagePool pool(Bytes{1U << 24U});
  const PackedFormats formats = WithRope();
  KvCache full(pool, PageKind::kTransient, kQuantGeometry, kTail);
  RandomData random(1);
  FillWithKeys(full, *formats.kvquant(kLayer), 400, random);

  // From positions that lie apart, as of a drop method, then from the full cache's next ones; a
  // draft is written and dropped in between.
  KvCache cache(pool, PageKind::kResident, kQuantGeometry, kTail, formats);
  std::vector<int> positions;
  for (int i = 0; i < 40; ++i) {
    positions.push_back(7 * i + 1);
  }
  for (int i = 300; i < 400; ++i) {
    positions.push_back(i);
  }
  for (int i = 0; i < kQuantGeometry.layers; ++i) {
    ASSERT_TRUE(cache.ExtendLayer(LayerId{i}, 40));
    for (int slot = 0; slot < 40; ++slot) {
      for (int head = 0; head < kQuantGeometry.kv_heads; ++head) {
        cache.CopySlot(LayerId{i}, slot, head, full, positions[Size(slot)]);
      }
    }
  }
  ASSERT_TRUE(cache.Pack(0));
  ASSERT_TRUE(cache.Extend(3));
  cache.Write(kLayer, 8, 0, std::vector<float>(32), std::vector<float>(32), 2000);
  cache.Truncate(3);
  for (int first = 300; first < 400; first += 25) {
    ASSERT_TRUE(cache.AppendTail(full, first, 25));
    ASSERT_TRUE(cache.Pack(5));
  }
  ASSERT_EQ(cache.packed_slots(kLayer), 128);
  const SegmentView view = cache.packed_view(kLayer, 0);
  const SegmentView whole = full.tail_view(kLayer);
  for (int slot = 0; slot < 128; ++slot) {
    for (int head = 0; head < 2; ++head) {
      const int position = positions[Size(slot)];
      EXPECT_LT(Distance(Key(whole, head, position), Key(view, head, slot)), 0.05) << slot;
      EXPECT_LT(Distance(Value(whole, head, position), Value(view, head, slot)), 0.2) << slot;
    }
  }
}

TEST(KvQuantCache, RowsThatDraftsWroteArePackedAtTheirPositions) {
  PagePool pool(Bytes{1U << 24U});
  const PackedFormats formats = WithRope();
  KvCache full(pool, PageKind::kTransient, kQuantGeometry, kTail);
  KvCache cache(pool, PageKind::kResident, kQuantGeometry, kTail, formats);
  RandomData random(2);
  FillWithKeys(full, *formats.kvquant(kLayer), 100, random);
  RandomData same(2);
  FillWithKeys(cache, *formats.kvquant(kLayer), 100, same);
  ASSERT_TRUE(cache.Pack(0));
  for (int slot = 0; slot < 96; ++slot) {
    EXPECT_LT(
        Distance(Key(full.tail_view(kLayer), 1, slot), Key(cache.packed_view(kLayer, 0), 1, slot)),
        0.05);
  }
}

TEST(KvQuantCache, TheFirstTokenIsAsItCame) {
  PagePool pool(Bytes{1U << 24U});
  for (const KvFormat packed : {kPacked, KvFormat{NumberFormat::kKvQuant2, NumberFormat::kQ8},
                                KvFormat{NumberFormat::kQ8, NumberFormat::kKvQuant2}}) {
    KvCache full(pool, PageKind::kTransient, kQuantGeometry, kTail);
    KvCache cache(pool, PageKind::kResident, kQuantGeometry, kTail, packed);
    RandomData random(3);
    testing::FillTail(full, 70, random);
    ASSERT_TRUE(cache.AppendTail(full, 0, 70));
    ASSERT_TRUE(cache.Pack(0));
    const SegmentView view = cache.packed_view(kLayer, 0);
    const SegmentView whole = full.tail_view(kLayer);
    for (int head = 0; head < 2; ++head) {
      if (IsKvQuant(packed.keys)) {
        EXPECT_EQ(Key(view, head, 0), Key(whole, head, 0));
        EXPECT_NE(Key(view, head, 1), Key(whole, head, 1));
      }
      if (IsKvQuant(packed.values)) {
        EXPECT_EQ(Value(view, head, 0), Value(whole, head, 0));
        EXPECT_NE(Value(view, head, 1), Value(whole, head, 1));
      }
    }
  }
}

TEST(KvQuantCache, IsRestoredAsItWas) {
  PagePool pool(Bytes{1U << 24U});
  const PackedFormats formats = WithRope();
  RandomData random(4);
  KvCache full(pool, PageKind::kTransient, kQuantGeometry, kTail);
  FillWithKeys(full, *formats.kvquant(kLayer), 200, random);
  KvCache cache(pool, PageKind::kResident, kQuantGeometry, kTail, formats);
  ASSERT_TRUE(cache.AppendTail(full, 50, 90));
  ASSERT_TRUE(cache.Pack(0));
  KvCache restored(pool, PageKind::kResident, kQuantGeometry, kTail, formats);
  ASSERT_TRUE(restored.Restore(cache.Saved()));
  for (KvCache* each : {&cache, &restored}) {
    ASSERT_TRUE(each->AppendTail(full, 140, 40));
    ASSERT_TRUE(each->Pack(0));
    ASSERT_EQ(each->packed_slots(kLayer), 128);
  }
  for (int slot = 0; slot < 128; ++slot) {
    for (int head = 0; head < 2; ++head) {
      const SegmentView a = cache.packed_view(kLayer, 0);
      const SegmentView b = restored.packed_view(kLayer, 0);
      EXPECT_EQ(Key(a, head, slot), Key(b, head, slot));
      EXPECT_EQ(Value(a, head, slot), Value(b, head, slot));
    }
  }
  std::vector<std::byte> damaged = cache.Saved();
  damaged.pop_back();
  KvCache other(pool, PageKind::kResident, kQuantGeometry, kTail, formats);
  EXPECT_FALSE(other.Restore(damaged));
}

}  // namespace
}  // namespace vericache
