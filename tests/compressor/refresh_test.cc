#include "compressor/refresh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "unit_support/random_data.h"

namespace vericache {
namespace {

using testing::RandomData;

constexpr CacheGeometry kTwoLayers = {.layers = 2, .kv_heads = 2, .head_dim = 32};
constexpr int kHeads = 4;
constexpr int kPrompt = 200;
constexpr int kVerified = 20;  // positions after it
constexpr int kLookedAt = 77;  // the position that the verified queries look at

// A prompt, a few verified positions after it, and queries that look at one position of the prompt.
struct Text {
  Text() {
    testing::FillTail(full, kPrompt + kVerified, random);
    std::vector<float> key(Size(kTwoLayers.head_dim));
    std::vector<float> value(key.size());
    for (int layer = 0; layer < kTwoLayers.layers; ++layer) {
      for (int position = kPrompt - 32; position < kPrompt + kVerified; ++position) {
        const auto row = taps.queries->at(LayerId{layer}, position);
        for (int head = 0; head < kHeads; ++head) {
          full.ReadTail(LayerId{layer}, kLookedAt, head / 2, key, value);
          std::ranges::transform(
              key, row.begin() + static_cast<std::ptrdiff_t>(head * kTwoLayers.head_dim),
              [&](float x) { return position < kPrompt ? 0.0F : 5.0F * x; });
        }
      }
    }
  }
  PromptView view(int positions) const {
    return {.full = full, .taps = &taps, .positions = positions, .heads = kHeads};
  }

  RandomData random{1};
  PagePool pool{Bytes{1U << 24U}};
  KvCache full{pool, PageKind::kTransient, kTwoLayers, KvFormat{}};
  Taps taps{{.query_window = 32, .verified_window = 16}, kTwoLayers, kHeads, kPrompt, 1, 40};
};

// Whether the first head of each layer holds the row of that position, bit for bit.
bool Holds(const KvCache& cache, const KvCache& full, int position) {
  std::vector<float> want(32);
  std::vector<float> have(32);
  std::vector<float> value(32);
  for (int layer = 0; layer < kTwoLayers.layers; ++layer) {
    full.ReadTail(LayerId{layer}, position, 0, want, value);
    bool found = false;
    for (int slot = 0; slot < cache.tail_slots(LayerId{layer}); ++slot) {
      cache.ReadTail(LayerId{layer}, slot, 0, have, value);
      found = found || have == want;
    }
    if (!found) {
      return false;
    }
  }
  return true;
}

TEST(Refresh, TakesUpWhatIsLookedAtNowAndKeepsAllThatCameAfterThePrompt) {
  Text text;
  const double keep = 0.1;
  const Compressor compressor = MakeCompressor("snapkv:refresh=0.5,window=8");
  RefreshState state;
  const KvCache before = Compress(compressor, text.view(kPrompt), keep, text.pool, &state);
  EXPECT_FALSE(Holds(before, text.full, kLookedAt));
  ASSERT_EQ(state.scores.size(), 2U);
  const int positions = kPrompt + kVerified;
  const KvCache after = Refresh(compressor, state, text.view(positions), keep, text.pool);
  EXPECT_EQ(after.tail_slots(LayerId{0}), before.tail_slots(LayerId{0}) + kVerified);
  EXPECT_TRUE(Holds(after, text.full, kLookedAt));
  for (int position = kPrompt; position < positions; ++position) {
    EXPECT_TRUE(Holds(after, text.full, position)) << position;
  }
}

TEST(Refresh, HeavyHittersAddUp) {
  Text text;
  text.taps.attention.emplace(kTwoLayers, kHeads, kPrompt, KeyAttention::Over::kSum, 1);
  const Compressor compressor = MakeCompressor("h2o");
  ASSERT_TRUE(compressor.refreshes());
  RefreshState state;
  const double keep = 0.1;
  const KvCache before = Compress(compressor, text.view(kPrompt), keep, text.pool, &state);
  EXPECT_FALSE(Holds(before, text.full, kLookedAt));
  for (int positions = kPrompt + 5; positions <= kPrompt + kVerified; positions += 5) {
    const KvCache after = Refresh(compressor, state, text.view(positions), keep, text.pool);
    EXPECT_TRUE(Holds(after, text.full, kLookedAt));
    EXPECT_EQ(state.seen, positions);
    // Nearly all that the queries had to give, each once.
    EXPECT_NEAR(state.scores[0][0][kLookedAt], positions - kPrompt, 0.1F);
  }
}

}  // namespace
}  // namespace vericache
