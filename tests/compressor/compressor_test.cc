#include "compressor/compressor.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compressor/streamingllm.h"
#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

StreamingLlm DefaultStreamingLlm() {
  MethodOptions none("streamingllm", "");
  return StreamingLlm(none);
}

constexpr CacheGeometry kGeometry = {.layers = 2, .kv_heads = 3, .head_dim = 32};
constexpr KvFormat kBf16 = {NumberFormat::kBF16, NumberFormat::kF16};
constexpr KvFormat kKivi = {NumberFormat::kKivi4, NumberFormat::kKivi2};

// Keeps random positions, different ones for each head and layer.
class RandomScorer final : public TokenScorer {
 public:
  explicit RandomScorer(std::uint32_t seed) : seed_(seed) {}

  LayerScores Scores(const PromptView& prompt, LayerId layer) const override {
    LayerScores scores;
    for (int head = 0; head < prompt.full.geometry().kv_heads; ++head) {
      RandomData random(seed_ + static_cast<std::uint32_t>(Raw(layer) * 100 + head));
      scores.push_back(random.Floats(Size(prompt.positions)));
    }
    return scores;
  }

 private:
  std::uint32_t seed_;
};

// The key and value of a slot, one after the other.
std::vector<float> ReadTail(const KvCache& cache, LayerId layer, int slot, int head) {
  std::vector<float> row(64);
  cache.ReadTail(layer, slot, head, std::span(row).subspan(0, 32), std::span(row).subspan(32, 32));
  return row;
}

RC_GTEST_PROP(KeptPositions, RoundsUpAndKeepsAtLeastOne, ()) {
  const int positions = *rc::gen::inRange(1, 5000);
  const int percent = *rc::gen::inRange(0, 101);
  const int kept = KeptPositions(positions, percent / 100.0);
  RC_ASSERT(kept >= 1);
  RC_ASSERT(kept <= positions);
  // Exactly ceil(percent * positions / 100), however 0.07 is rounded in binary.
  RC_ASSERT(kept == std::max(1, (percent * positions + 99) / 100));
}

RC_GTEST_PROP(Select, KeepsTheHighestAndAmongEqualsTheEarlier, (std::uint32_t seed)) {
  RandomData random(seed);
  const int positions = 1 + random.Below(100);
  std::vector<float> scores(Size(positions));
  for (float& score : scores) {
    score = static_cast<float>(random.Below(8));
  }
  const int count = 1 + random.Below(positions);
  std::vector<int> order(Size(positions));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int i) { return scores[Size(i)]; });
  order.resize(Size(count));
  std::ranges::sort(order);
  RC_ASSERT(Select({scores, scores}, count) == (LayerSelection{order, order}));
}

TEST(KeptPositions, KeepsEverythingAtOne) {
  EXPECT_EQ(KeptPositions(10, 1.0), 10);
  EXPECT_EQ(KeptPositions(10, 0.25), 3);
  EXPECT_EQ(KeptPositions(1, 0.01), 1);
  EXPECT_EQ(KeptPositions(100, 0.07), 7);
}

RC_GTEST_PROP(Compress, KeepsTheSelectedRowsBitForBitAndPacksTheOldest, (std::uint32_t seed)) {
  RandomData random(seed);
  PagePool pool(Bytes{1U << 24U});
  const int positions = 1 + random.Below(250);
  KvCache full(pool, PageKind::kTransient, kGeometry, kBf16);
  testing::FillTail(full, positions, random);
  const bool packs = random.Below(2) == 0;
  const Compressor compressor{.name = "random",
                              .scorer = std::make_unique<RandomScorer>(seed),
                              .format = packs ? std::optional(kKivi) : std::nullopt,
                              .residual = random.Below(100)};
  const double keep = (1 + random.Below(100)) / 100.0;
  const PromptView prompt{.full = full, .positions = positions, .heads = 3};
  const KvCache compressed = Compress(compressor, prompt, keep, pool);

  const int count = KeptPositions(positions, keep);
  const int packed =
      packs ? std::max(0, count - compressor.residual) / kGroupSlots * kGroupSlots : 0;
  for (int i = 0; i < kGeometry.layers; ++i) {
    const LayerId layer{i};
    RC_ASSERT(compressed.packed_slots(layer) == packed);
    RC_ASSERT(compressed.slots(layer) == count);
    const LayerSelection kept = Select(compressor.scorer->Scores(prompt, layer), count);
    for (int head = 0; head < kGeometry.kv_heads; ++head) {
      for (int slot = packed; slot < count; ++slot) {
        RC_ASSERT(ReadTail(compressed, layer, slot - packed, head) ==
                  ReadTail(full, layer, kept[Size(head)][Size(slot)], head));
      }
      // A packed group equals WriteGroup of the same rows.
      for (int first = 0; first < packed; first += kGroupSlots) {
        std::vector<float> keys;
        std::vector<float> values;
        for (int slot = first; slot < first + kGroupSlots; ++slot) {
          const auto row = ReadTail(full, layer, kept[Size(head)][Size(slot)], head);
          keys.insert(keys.end(), row.begin(), row.begin() + 32);
          values.insert(values.end(), row.begin() + 32, row.end());
        }
        const PageLayout layout(kKivi, kGeometry);
        std::vector<std::byte> page(layout.page_bytes());
        WriteGroup(layout, page.data(), head, first % kPageSlots, keys, values);
        const SegmentView view = compressed.packed_view(layer, 0);
        std::vector<float> expected(32);
        std::vector<float> actual(32);
        for (int slot = first; slot < first + kGroupSlots; ++slot) {
          const std::byte* at = view.pages[Size(slot / kPageSlots)];
          ReadKey(layout, page.data(), head, slot % kPageSlots, expected);
          ReadKey(layout, at, head, slot % kPageSlots, actual);
          RC_ASSERT(actual == expected);
          ReadValue(layout, page.data(), head, slot % kPageSlots, expected);
          ReadValue(layout, at, head, slot % kPageSlots, actual);
          RC_ASSERT(actual == expected);
        }
      }
    }
  }
}

TEST(Compress, PacksWholeGroupsBeyondTheResidualAsPackDoes) {
  RandomData random(3);
  PagePool pool(Bytes{1U << 24U});
  Compressor compressor{.name = "kivi", .scorer = nullptr, .format = kKivi, .residual = 0};
  for (const int positions : {1, 31, 32, 33, 63, 64, 95, 96, 160}) {
    KvCache full(pool, PageKind::kTransient, kGeometry, kBf16);
    testing::FillTail(full, positions, random);
    for (const int residual : {0, 1, 31, 32, 33, 128}) {
      compressor.residual = residual;
      const KvCache compressed =
          Compress(compressor, {.full = full, .positions = positions, .heads = 3}, 1.0, pool);
      KvCache packed(pool, PageKind::kResident, kGeometry, kBf16, kKivi);
      ASSERT_TRUE(packed.AppendTail(full, 0, positions));
      ASSERT_TRUE(packed.Pack(residual));
      EXPECT_EQ(compressed.packed_slots(LayerId{0}), packed.packed_slots(LayerId{0}))
          << positions << ' ' << residual;
      EXPECT_EQ(compressed.slots(LayerId{0}), positions);
    }
  }
}

TEST(Compress, NoneCopiesEverythingBitForBit) {
  RandomData random(1);
  PagePool pool(Bytes{1U << 24U});
  KvCache full(pool, PageKind::kTransient, kGeometry, kBf16);
  testing::FillTail(full, 130, random);
  const KvCache copy =
      Compress(MakeCompressor("none"), {.full = full, .positions = 130, .heads = 3}, 0.1, pool);
  EXPECT_EQ(copy.bytes(), full.bytes());
  for (int i = 0; i < kGeometry.layers; ++i) {
    ASSERT_EQ(copy.tail_slots(LayerId{i}), 130);
    for (int slot = 0; slot < 130; ++slot) {
      for (int head = 0; head < kGeometry.kv_heads; ++head) {
        ASSERT_EQ(ReadTail(copy, LayerId{i}, slot, head), ReadTail(full, LayerId{i}, slot, head));
      }
    }
  }
}

TEST(Compress, ThrowsWhereThePoolHasNoRoomAndGivesEverythingBack) {
  RandomData random(2);
  PagePool full_pool(Bytes{1U << 24U});
  KvCache full(full_pool, PageKind::kTransient, kGeometry, kBf16);
  testing::FillTail(full, 300, random);
  for (const char* name : {"none", "kivi4", "streamingllm+kivi2", "streamingllm"}) {
    PagePool pool(Bytes{PageLayout(kBf16, kGeometry).page_bytes()});
    try {
      Compress(MakeCompressor(name), {.full = full, .positions = 300, .heads = 3}, 0.9, pool);
      FAIL() << name << " fitted";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("does not fit"), std::string::npos) << error.what();
    }
    EXPECT_EQ(pool.in_use(), Bytes{0});
  }
}

RC_GTEST_PROP(StreamingLlm, KeepsTheSinksAndTheMostRecent, ()) {
  PagePool pool(Bytes{1U << 20U});
  const KvCache full(pool, PageKind::kTransient, kGeometry, kBf16);
  const int positions = *rc::gen::inRange(1, 3000);
  const int count = *rc::gen::inRange(1, positions + 1);
  const LayerSelection selection = Select(
      DefaultStreamingLlm().Scores({.full = full, .positions = positions, .heads = 3}, LayerId{0}),
      count);
  RC_ASSERT(selection.size() == Size(kGeometry.kv_heads));
  for (const std::vector<int>& kept : selection) {
    RC_ASSERT(kept == selection[0]);
    RC_ASSERT(kept.size() == Size(count));
    RC_ASSERT(kept.back() == positions - 1);
    for (int i = 0; i < count; ++i) {
      const bool sink = i < std::min(StreamingLlm::kSinks, count - 1);
      RC_ASSERT(kept[Size(i)] == (sink ? i : positions - count + i));
    }
  }
}

// Each layer by its own recipe: as many slots, in such parts, as it says.
TEST(Compress, LayersMayDiffer) {
  RandomData random(11);
  PagePool pool(Bytes{1U << 24U});
  KvCache full(pool, PageKind::kTransient, kGeometry, kBf16);
  testing::FillTail(full, 300, random);
  Compressor compressor{.name = "random", .scorer = std::make_unique<RandomScorer>(5)};
  compressor.layers = {{.keep = 0.5, .format = kKivi, .split = std::nullopt},
                       {.keep = std::nullopt, .format = std::nullopt, .split = std::nullopt}};
  const KvCache cache = Compress(
      compressor, {.full = full, .taps = nullptr, .positions = 300, .heads = 3}, 0.1, pool);
  EXPECT_EQ(cache.packed_slots(LayerId{0}), 128);
  EXPECT_EQ(cache.slots(LayerId{0}), 150);
  EXPECT_EQ(cache.packed_parts(LayerId{1}), 0);
  EXPECT_EQ(cache.slots(LayerId{1}), 30);
  EXPECT_TRUE(compressor.takes_keep());
  compressor.layers[1].keep = 1.0;
  EXPECT_FALSE(compressor.takes_keep());
}

// Of the kept positions that are packed, those of the highest scores are in the first part, the
// others in the second, both in order.
RC_GTEST_PROP(Compress, SplitsByScore, (std::uint32_t seed)) {
  RandomData random(seed);
  PagePool pool(Bytes{1U << 24U});
  const int positions = 33 + random.Below(300);
  KvCache full(pool, PageKind::kTransient, kGeometry, kBf16);
  testing::FillTail(full, positions, random);
  // Plain formats on both sides, so that rows are what they were.
  Compressor compressor{
      .name = "random",
      .scorer = std::make_unique<RandomScorer>(seed),
      .format = kBf16,
      .residual = random.Below(50),
      .split = Split{.low = kBf16, .high_share = (1 + random.Below(100)) / 100.0}};
  const bool scored = random.Below(4) > 0;
  if (!scored) {
    compressor.scorer = nullptr;
  }
  const double keep = scored ? (20 + random.Below(81)) / 100.0 : 1.0;
  const PromptView prompt{.full = full, .taps = nullptr, .positions = positions, .heads = 3};
  const KvCache cache = Compress(compressor, prompt, keep, pool);
  const int count = KeptPositions(positions, keep);
  const LayerSlots slots = SlotsOf(compressor.recipe(LayerId{0}), compressor.residual, count);
  RC_ASSERT(slots.high % kGroupSlots == 0 && slots.low % kGroupSlots == 0);
  RC_ASSERT(slots.high + slots.low + slots.tail == count);
  RC_ASSERT(slots.high >= compressor.split->high_share * (slots.high + slots.low) - 1e-3);
  for (int i = 0; i < kGeometry.layers; ++i) {
    const LayerId layer{i};
    const LayerScores scores = scored ? compressor.scorer->Scores(prompt, layer) : LayerScores{};
    for (int head = 0; head < kGeometry.kv_heads; ++head) {
      std::vector<int> kept(Size(count));
      std::iota(kept.begin(), kept.end(), 0);
      std::vector<float> worth(Size(positions));
      std::iota(worth.begin(), worth.end(), 0.0F);
      if (scored) {
        worth = scores[Size(head)];
        kept = Select(scores, count)[Size(head)];
      }
      std::vector<int> packed(kept.begin(), kept.begin() + slots.high + slots.low);
      std::ranges::sort(packed, std::greater(), [&worth](int at) { return worth[Size(at)]; });
      std::sort(packed.begin(), packed.begin() + slots.high);
      std::sort(packed.begin() + slots.high, packed.end());
      for (int slot = 0; slot < slots.high + slots.low; ++slot) {
        const int part = slot < slots.high ? 0 : 1;
        const int at = slot - (part == 0 ? 0 : slots.high);
        const SegmentView view = cache.packed_view(layer, part);
        std::vector<float> key(32);
        ReadKey(*view.layout, view.pages[Size(at / kPageSlots)], head, at % kPageSlots, key);
        const std::vector<float> row = ReadTail(full, layer, packed[Size(slot)], head);
        RC_ASSERT(std::ranges::equal(key, std::span(row).first(32)));
      }
    }
  }
}

TEST(ProtectOutlierKeys, GivesThemAScalePerChannelAndSaysSo) {
  const std::vector<bool> outliers = {false, true};
  const std::vector<std::pair<std::string, NumberFormat>> changed = {
      {"q4", NumberFormat::kKivi4},          {"q8r", NumberFormat::kQ8},
      {"kivi2r", NumberFormat::kKivi2},      {"turboquant3", NumberFormat::kKivi4},
      {"turboquant2", NumberFormat::kKivi2}, {"rotatekv4", NumberFormat::kKivi4}};
  for (const auto& [name, keys] : changed) {
    Compressor compressor = MakeCompressor(name);
    const KvFormat before = *compressor.format;
    ProtectOutlierKeys(compressor, outliers);
    EXPECT_EQ(compressor.recipe(LayerId{0}).format, before) << name;
    EXPECT_EQ(compressor.recipe(LayerId{1}).format, (KvFormat{keys, before.values})) << name;
    EXPECT_NE(compressor.note.find("layers 1 "), std::string::npos) << compressor.note;
  }
  for (const char* name : {"none", "snapkv", "kivi4", "kivi2", "q8", "k=f16,v=q4r", "kvquant2"}) {
    Compressor compressor = MakeCompressor(name);
    ProtectOutlierKeys(compressor, outliers);
    EXPECT_TRUE(compressor.layers.empty()) << name;
    EXPECT_EQ(compressor.note, "") << name;
  }
}

}  // namespace
}  // namespace vericache
