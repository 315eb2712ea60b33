#include "kvcache/kv_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr CacheGeometry kGeometry = {.layers = 2, .kv_heads = 2, .head_dim = 32};
constexpr KvFormat kF16 = {NumberFormat::kF16, NumberFormat::kF16};
constexpr KvFormat kKivi = {NumberFormat::kKivi4, NumberFormat::kKivi2};
constexpr std::size_t kDim = 32;

// A row of one layer: key and value of every head, as they are read back.
using Row = std::vector<float>;

// What a cache holds, as plain rows: the oldest `packed` of a layer are quantized.
struct Model {
  struct Layer {
    std::vector<Row> packed;
    std::vector<Row> tail;
  };
  std::vector<Layer> layers{Size(kGeometry.layers)};

  int tail() const { return static_cast<int>(layers[0].tail.size()); }
};

Row ReadTailRow(const KvCache& cache, LayerId layer, int slot) {
  Row row(Size(kGeometry.kv_heads) * 2 * kDim);
  for (int head = 0; head < kGeometry.kv_heads; ++head) {
    const auto at = std::span(row).subspan(Size(head) * 2 * kDim);
    cache.ReadTail(layer, slot, head, at.subspan(0, kDim), at.subspan(kDim, kDim));
  }
  return row;
}

Row ReadRow(const SegmentView& view, int slot) {
  Row row(Size(kGeometry.kv_heads) * 2 * kDim);
  const int in_page = (view.begin + slot) % kPageSlots;
  const std::byte* page = view.pages[Size((view.begin + slot) / kPageSlots)];
  for (int head = 0; head < kGeometry.kv_heads; ++head) {
    const auto at = std::span(row).subspan(Size(head) * 2 * kDim);
    ReadKey(*view.layout, page, head, in_page, at.subspan(0, kDim));
    ReadValue(*view.layout, page, head, in_page, at.subspan(kDim, kDim));
  }
  return row;
}

// The group of rows [0, kGroupSlots) of a model's tail as WriteGroup stores it.
std::vector<Row> Quantized(const std::vector<Row>& rows) {
  const PageLayout layout(kKivi, kGeometry);
  std::vector<std::byte> page(layout.page_bytes());
  std::byte* const address = page.data();
  for (int head = 0; head < kGeometry.kv_heads; ++head) {
    std::vector<float> keys;
    std::vector<float> values;
    for (std::size_t s = 0; s < kGroupSlots; ++s) {
      const auto key = rows[s].begin() + static_cast<std::ptrdiff_t>(Size(head) * 2 * kDim);
      keys.insert(keys.end(), key, key + kDim);
      values.insert(values.end(), key + kDim, key + 2 * kDim);
    }
    WriteGroup(layout, page.data(), head, 0, keys, values);
  }
  const SegmentView view{.layout = &layout, .pages = {&address, 1}, .begin = 0, .end = kGroupSlots};
  std::vector<Row> quantized;
  for (int s = 0; s < kGroupSlots; ++s) {
    quantized.push_back(ReadRow(view, s));
  }
  return quantized;
}

// Writes a random row to a slot of every layer and tells the model what is read back.
void WriteRow(KvCache& cache, Model& model, int slot, RandomData& random) {
  for (int i = 0; i < kGeometry.layers; ++i) {
    for (int head = 0; head < kGeometry.kv_heads; ++head) {
      cache.Write(LayerId{i}, slot, head, random.Floats(kDim), random.Floats(kDim));
    }
    model.layers[Size(i)].tail[Size(slot)] = ReadTailRow(cache, LayerId{i}, slot);
  }
}

void CheckSame(const KvCache& cache, const Model& model, const PagePool& pool, Bytes others) {
  for (int i = 0; i < kGeometry.layers; ++i) {
    const LayerId layer{i};
    const Model::Layer& expected = model.layers[Size(i)];
    RC_ASSERT(cache.packed_slots(layer) == static_cast<int>(expected.packed.size()));
    RC_ASSERT(cache.tail_slots(layer) == static_cast<int>(expected.tail.size()));
    RC_ASSERT(cache.slots(layer) == cache.packed_slots(layer) + cache.tail_slots(layer));
    const SegmentView packed =
        cache.packed_parts(layer) > 0 ? cache.packed_view(layer, 0) : SegmentView{};
    RC_ASSERT(packed.slots() == cache.packed_slots(layer));
    for (int s = 0; s < packed.slots(); ++s) {
      RC_ASSERT(ReadRow(packed, s) == expected.packed[Size(s)]);
    }
    const SegmentView tail = cache.tail_view(layer);
    RC_ASSERT(tail.slots() == cache.tail_slots(layer));
    for (int s = 0; s < tail.slots(); ++s) {
      RC_ASSERT(ReadRow(tail, s) == expected.tail[Size(s)]);
      RC_ASSERT(ReadTailRow(cache, layer, s) == expected.tail[Size(s)]);
    }
  }
  RC_ASSERT(cache.bytes() + others == pool.in_use());
  RC_ASSERT(cache.bytes() <= cache.peak_bytes());
  RC_ASSERT(cache.peak_bytes() + others <= pool.peak());
}

// Any sequence of operations leaves what the same operations leave of plain rows.
RC_GTEST_PROP(KvCache, HoldsWhatPlainRowsWouldHold, (std::uint32_t seed)) {
  RandomData random(seed);
  // Sometimes too small for everything: a refused operation must change nothing.
  PagePool pool(Bytes{random.Below(2) == 0 ? 1U << 22U : 1U << 17U});
  KvCache other(pool, PageKind::kTransient, kGeometry, kF16);
  testing::FillTail(other, 40, random);
  const Bytes others = pool.in_use();
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16, kKivi);
  Model model;
  for (int step = 0; step < 25; ++step) {
    const int rows = random.Below(40);
    switch (random.Below(4)) {
      case 0:
        if (cache.Extend(rows)) {
          for (Model::Layer& layer : model.layers) {
            layer.tail.resize(layer.tail.size() + Size(rows));
          }
          for (int slot = model.tail() - rows; slot < model.tail(); ++slot) {
            WriteRow(cache, model, slot, random);
          }
        }
        break;
      case 1: {
        const int dropped = std::min(rows, model.tail());
        cache.Truncate(dropped);
        for (Model::Layer& layer : model.layers) {
          layer.tail.resize(layer.tail.size() - Size(dropped));
        }
        break;
      }
      case 2:
        if (cache.AppendTail(other, other.tail_slots(LayerId{0}) - rows, rows)) {
          for (int i = 0; i < kGeometry.layers; ++i) {
            for (int row = 40 - rows; row < 40; ++row) {
              model.layers[Size(i)].tail.push_back(ReadTailRow(other, LayerId{i}, row));
            }
          }
        }
        break;
      default:
        // Where the pool has no room, some groups may be packed and others not.
        if (const bool all = cache.Pack(rows); true) {
          for (int i = 0; i < kGeometry.layers; ++i) {
            Model::Layer& layer = model.layers[Size(i)];
            while (all ? static_cast<int>(layer.tail.size()) >= rows + kGroupSlots
                       : static_cast<int>(layer.packed.size()) < cache.packed_slots(LayerId{i})) {
              for (Row& row : Quantized(layer.tail)) {
                layer.packed.push_back(std::move(row));
              }
              layer.tail.erase(layer.tail.begin(), layer.tail.begin() + kGroupSlots);
            }
          }
          if (!all) {
            CheckSame(cache, model, pool, others);
            return;  // the layers now differ in their split
          }
        }
    }
    CheckSame(cache, model, pool, others);
  }
  // As bytes it is the same, and nothing but all of them is taken for it.
  const std::vector<std::byte> saved = cache.Saved();
  PagePool another(Bytes{1U << 22U});
  KvCache restored(another, PageKind::kResident, kGeometry, kF16, kKivi);
  RC_ASSERT(restored.Restore(saved));
  CheckSame(restored, model, another, {});
  const auto cut = static_cast<std::size_t>(random.Below(static_cast<int>(saved.size())));
  KvCache half(another, PageKind::kResident, kGeometry, kF16, kKivi);
  RC_ASSERT(!half.Restore(std::span(saved).first(cut)));
  std::vector<std::byte> more = saved;
  more.push_back(std::byte{0});
  KvCache longer(another, PageKind::kResident, kGeometry, kF16, kKivi);
  RC_ASSERT(!longer.Restore(more));
}

// Bytes that were never a cache are refused, or taken for the cache that would save the same.
RC_GTEST_PROP(KvCache, RestoreTakesWhatItWouldSave, (std::uint32_t seed)) {
  RandomData random(seed);
  PagePool pool(Bytes{1U << 22U});
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16);
  testing::FillTail(cache, random.Below(200), random);
  std::vector<std::byte> saved = cache.Saved();
  // The ranges of the first layer's segments: one of their numbers becomes any other.
  std::int32_t number = 0;
  const std::size_t at = sizeof(number) * Size(random.Below(4));
  std::memcpy(&number, saved.data() + at, sizeof(number));
  const auto other = *rc::gen::oneOf(rc::gen::arbitrary<std::int32_t>(),
                                     rc::gen::inRange<std::int32_t>(-500, 500));
  std::memcpy(saved.data() + at, &other, sizeof(other));
  KvCache restored(pool, PageKind::kResident, kGeometry, kF16);
  RC_ASSERT(!restored.Restore(saved) || restored.Saved() == saved);
}

TEST(KvCache, RefusedExtendChangesNothing) {
  const PageLayout layout(kF16, kGeometry);
  PagePool pool(Bytes{3 * layout.page_bytes()});  // the second page of the second layer is missing
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16);
  ASSERT_TRUE(cache.Extend(60));
  RandomData random(1);
  Model model;
  for (Model::Layer& layer : model.layers) {
    layer.tail.resize(60);
  }
  for (int slot = 0; slot < 60; ++slot) {
    WriteRow(cache, model, slot, random);
  }
  EXPECT_FALSE(cache.Extend(5));
  EXPECT_EQ(cache.bytes(), Bytes{2 * layout.page_bytes()});
  EXPECT_EQ(pool.in_use(), cache.bytes());
  for (int i = 0; i < kGeometry.layers; ++i) {
    ASSERT_EQ(cache.tail_slots(LayerId{i}), 60);
    for (int slot = 0; slot < 60; ++slot) {
      ASSERT_EQ(ReadTailRow(cache, LayerId{i}, slot), model.layers[Size(i)].tail[Size(slot)]);
    }
  }
  EXPECT_TRUE(cache.Extend(4));
}

// Whichever of two caches that share a front grows, shrinks or goes first, the other one holds what
// it held, and a shared page is counted once.
RC_GTEST_PROP(KvCache, SharedFrontsAreTheSameRows, (std::uint32_t seed)) {
  RandomData random(seed);
  PagePool pool(Bytes{1U << 24U});
  const int rows = *rc::gen::inRange(kPageSlots, 5 * kPageSlots);
  const int shared = *rc::gen::inRange(1, rows / kPageSlots + 1) * kPageSlots;
  const int more = *rc::gen::inRange(1, 200);
  Model first_model;
  std::optional<KvCache> first;
  first.emplace(pool, PageKind::kResident, kGeometry, kF16);
  for (Model::Layer& layer : first_model.layers) {
    layer.tail.resize(Size(rows));
  }
  RC_ASSERT(first->Extend(rows));
  for (int slot = 0; slot < rows; ++slot) {
    WriteRow(*first, first_model, slot, random);
  }

  std::optional<KvCache> second;
  second.emplace(pool, PageKind::kResident, kGeometry, kF16);
  second->ShareFront(*first, shared);
  const Bytes twice = PlainCacheBytes(kGeometry, kF16, shared);
  CheckSame(*first, first_model, pool, second->bytes() - twice);
  Model second_model = first_model;
  for (Model::Layer& layer : second_model.layers) {
    layer.tail.resize(Size(shared + more));
  }
  if (*rc::gen::arbitrary<bool>()) {
    RC_ASSERT(second->Extend(more));
  } else {
    RC_ASSERT(second->ExtendForLoad(more));
  }
  for (int slot = shared; slot < shared + more; ++slot) {
    WriteRow(*second, second_model, slot, random);
  }
  CheckSame(*first, first_model, pool, second->bytes() - twice);
  if (*rc::gen::arbitrary<bool>()) {
    first.reset();
    CheckSame(*second, second_model, pool, {});
  } else {
    second.reset();
    CheckSame(*first, first_model, pool, {});
  }
  first.reset();
  second.reset();
  RC_ASSERT(pool.in_use() == Bytes{});
}

TEST(KvCache, RefusedAppendTailChangesNothing) {
  const PageLayout layout(kF16, kGeometry);
  PagePool other_pool(Bytes{1U << 20U});
  KvCache other(other_pool, PageKind::kTransient, kGeometry, kF16);
  RandomData random(2);
  testing::FillTail(other, 10, random);
  PagePool pool(Bytes{2 * layout.page_bytes()});
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16);
  testing::FillTail(cache, 60, random);
  EXPECT_FALSE(cache.AppendTail(other, 0, 10));
  EXPECT_EQ(cache.slots(LayerId{0}), 60);
  EXPECT_EQ(cache.slots(LayerId{1}), 60);
  EXPECT_TRUE(cache.AppendTail(other, 0, 4));
}

TEST(KvCache, PackKeepsAtLeastTheResidualInTheTail) {
  PagePool pool(Bytes{1U << 22U});
  for (const int residual : {0, 5, 32, 128}) {
    for (const int rows : {0, 31, 32, 36, 37, 64, 159, 160, 200}) {
      KvCache cache(pool, PageKind::kResident, kGeometry, kF16, kKivi);
      RandomData random(3);
      testing::FillTail(cache, rows, random);
      ASSERT_TRUE(cache.Pack(residual));
      const int packed = std::max(0, rows - residual) / kGroupSlots * kGroupSlots;
      EXPECT_EQ(cache.packed_slots(LayerId{1}), packed) << rows << ' ' << residual;
      EXPECT_EQ(cache.slots(LayerId{1}), rows);
    }
  }
  EXPECT_EQ(pool.in_use(), Bytes{0});
}

TEST(KvCache, PackWithoutAPackedFormatDoesNothing) {
  PagePool pool(Bytes{1U << 22U});
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16);
  RandomData random(4);
  testing::FillTail(cache, 100, random);
  EXPECT_TRUE(cache.Pack(0));
  EXPECT_EQ(cache.packed_slots(LayerId{0}), 0);
  EXPECT_EQ(cache.tail_slots(LayerId{0}), 100);
  EXPECT_EQ(cache.packed_parts(LayerId{0}), 0);
}

TEST(KvCache, PacksSoonerThanItTakesAFullTailsMemory) {
  PagePool pool(Bytes{1U << 22U});
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16, kKivi);
  RandomData random(5);
  for (int i = 0; i < 20; ++i) {
    testing::FillTail(cache, 32, random);
    ASSERT_TRUE(cache.Pack(0));
  }
  const PageLayout packed(kKivi, kGeometry);
  EXPECT_EQ(cache.packed_slots(LayerId{0}), 640);
  EXPECT_EQ(cache.tail_slots(LayerId{0}), 0);
  EXPECT_LE(cache.bytes(),
            Bytes{2 * (10 * packed.page_bytes() + PageLayout(kF16, kGeometry).page_bytes())});
}

TEST(KvCache, ExtendLayerGrowsOneLayerOnly) {
  PagePool pool(Bytes{1U << 20U});
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16);
  ASSERT_TRUE(cache.ExtendLayer(LayerId{1}, 70));
  EXPECT_EQ(cache.slots(LayerId{0}), 0);
  EXPECT_EQ(cache.slots(LayerId{1}), 70);
}

TEST(KvCache, NewSlotsOfNewPagesAreZeros) {
  PagePool pool(Bytes{1U << 20U});
  {
    KvCache used(pool, PageKind::kResident, kGeometry, kF16);
    RandomData random(6);
    testing::FillTail(used, 64, random);
  }
  KvCache cache(pool, PageKind::kResident, kGeometry, kF16);
  ASSERT_TRUE(cache.Extend(64));
  for (int slot = 0; slot < 64; ++slot) {
    EXPECT_EQ(ReadTailRow(cache, LayerId{0}, slot), Row(Size(kGeometry.kv_heads) * 2 * kDim));
  }
}

TEST(KvCache, RefusesAFormatThatDoesNotFitTheGeometry) {
  PagePool pool(Bytes{1U << 20U});
  const CacheGeometry odd = {.layers = 1, .kv_heads = 1, .head_dim = 48};
  EXPECT_THROW(KvCache(pool, PageKind::kResident, odd, kF16, kKivi), UserError);
  EXPECT_NO_THROW(KvCache(pool, PageKind::kResident, odd, kF16));
}

TEST(PlainCacheBytes, IsWhatACacheOfThatManySlotsTakes) {
  PagePool pool(Bytes{1U << 24U});
  for (const int slots : {0, 1, 64, 65, 1000}) {
    KvCache cache(pool, PageKind::kResident, kGeometry, kF16);
    ASSERT_TRUE(cache.Extend(slots));
    EXPECT_EQ(cache.bytes(), PlainCacheBytes(kGeometry, kF16, slots));
    EXPECT_EQ(cache.peak_bytes(), cache.bytes());
  }
}

}  // namespace
}  // namespace vericache
