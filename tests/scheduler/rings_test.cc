#include "scheduler/rings.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

namespace vericache {
namespace {

constexpr std::int64_t kIteration = ReloadRings::kIteration;

// Further ahead than any reservation of these tests.
constexpr int kFar = 200;

int Span(double iterations) { return std::max(1, static_cast<int>(std::ceil(iterations))); }

// Rings, and beside them the reservations that they should hold.
struct Model {
  explicit Model(int look_ahead) : window(look_ahead), rings(look_ahead) {}

  std::int64_t Link(std::int64_t iteration) const {
    std::int64_t sum = 0;
    for (const Reservation& each : held) {
      sum += iteration >= each.begin && iteration < each.verify ? each.link : 0;
    }
    return sum;
  }

  Bytes Memory(std::int64_t iteration) const {
    Bytes sum;
    for (const Reservation& each : held) {
      sum += iteration >= each.begin && iteration <= each.verify ? each.bytes : Bytes{};
    }
    return sum;
  }

  // Whether a verify `ahead` of the next iteration fits.
  bool Fits(const FullCacheSize& cache, double iterations, int ahead, Bytes room) const {
    const int span = Span(iterations);
    const Bytes bytes = cache.bytes(ahead + 1);
    for (int i = ahead - span; i <= ahead; ++i) {
      const double link = static_cast<double>(Link(rings.now() + i)) / kIteration;
      if ((i < ahead && link + iterations / span > 1.0) || Memory(rings.now() + i) + bytes > room) {
        return false;
      }
    }
    return true;
  }

  // The place that Reserve should find: all are tried, and the nearest to the wish is taken.
  std::optional<int> Nearest(const FullCacheSize& cache, double iterations, int draft_length,
                             Bytes room) const {
    const int first = Span(iterations);
    const int last = std::max(window - 1, first);
    const int wish = std::clamp(draft_length, first, last);
    std::optional<int> best;
    for (int ahead = first; ahead <= last; ++ahead) {
      if (Fits(cache, iterations, ahead, room) &&
          (!best || std::abs(ahead - wish) < std::abs(*best - wish))) {
        best = ahead;
      }
    }
    return best;
  }

  void CheckHeld() const {
    Bytes peak;
    for (int ahead = 0; ahead < kFar; ++ahead) {
      RC_ASSERT(rings.link(ahead) == Link(rings.now() + ahead));
      RC_ASSERT(rings.memory(ahead).count == Memory(rings.now() + ahead).count);
      peak = std::max(peak, rings.memory(ahead));
    }
    RC_ASSERT(rings.peak_memory().count == peak.count);
  }

  int window;
  ReloadRings rings;
  std::vector<Reservation> held;
};

// Of 0.125 to 15 iterations: eighths, so that sums of shares come out even now and then.
double AnyIterations() { return *rc::gen::inRange(1, 120) / 8.0; }

FullCacheSize AnyCache() {
  const auto slots = *rc::gen::inRange(0, 60);
  return {.group = {*rc::gen::inRange<std::uint64_t>(1, 20)},
          .group_slots = *rc::gen::inRange(1, 9),
          .slots = slots,
          .limit = slots + *rc::gen::inRange(1, 40)};
}

// Any sequence of what a scheduler may do. Room changes from call to call only where `vary`.
void DoAny(Model& model, bool vary) {
  Bytes room{*rc::gen::inRange<std::uint64_t>(100, 3000)};
  const auto steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    const auto what = *rc::gen::inRange(0, 6);
    if (what < 3) {
      const FullCacheSize cache = AnyCache();
      const double iterations = AnyIterations();
      const auto wish = *rc::gen::inRange(0, 40);
      room = vary ? Bytes{*rc::gen::inRange<std::uint64_t>(0, 3000)} : room;
      const std::optional<int> nearest = model.Nearest(cache, iterations, wish, room);
      const auto place = model.rings.Reserve(cache, iterations, wish, room);
      RC_ASSERT(place.has_value() == nearest.has_value());
      if (place) {
        RC_ASSERT(place->verify == model.rings.now() + *nearest);
        RC_ASSERT(place->begin == place->verify - Span(iterations));
        RC_ASSERT(place->bytes.count == cache.bytes(*nearest + 1).count);
        model.held.push_back(*place);
        for (int ahead = 0; ahead < kFar; ++ahead) {
          const std::int64_t iteration = model.rings.now() + ahead;
          RC_ASSERT(model.rings.link(ahead) <= kIteration);
          RC_ASSERT((vary && (iteration < place->begin || iteration > place->verify)) ||
                    model.rings.memory(ahead) <= room);
        }
      }
    } else if (what == 3) {
      model.rings.Advance();
    } else if (!model.held.empty()) {
      const auto which = *rc::gen::inRange<std::size_t>(0, model.held.size());
      const Reservation reservation = model.held[which];
      model.rings.Release(reservation);
      if (what == 4) {
        model.rings.Restore(reservation);
      } else {
        model.held.erase(model.held.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    model.CheckHeld();
  }
}

TEST(FullCacheSize, IsWholeGroupsUpToItsLimit) {
  const FullCacheSize cache{.group = {10}, .group_slots = 4, .slots = 5, .limit = 14};
  EXPECT_EQ(cache.bytes(), Bytes{20});
  EXPECT_EQ(cache.bytes(3), Bytes{20});
  EXPECT_EQ(cache.bytes(4), Bytes{30});
  EXPECT_EQ(cache.bytes(9), Bytes{40});
  EXPECT_EQ(cache.bytes(1000), Bytes{40});
}

// Whatever was reserved, restored and released, each ring holds the sum of what is left, no more
// than there is, and a new reload gets the fitting place nearest to its wish.
RC_GTEST_PROP(ReloadRings, AreNeverOverCommittedAndGiveTheNearestPlace, ()) {
  Model model(*rc::gen::inRange(2, 40));
  DoAny(model, false);
}

RC_GTEST_PROP(ReloadRings, TakeTheRoomThatThereIsNow, ()) {
  Model model(*rc::gen::inRange(2, 40));
  DoAny(model, true);
}

RC_GTEST_PROP(ReloadRings, ReleasedOneByOneTheyAreEmpty, ()) {
  Model model(*rc::gen::inRange(2, 40));
  DoAny(model, false);
  for (const Reservation& each : model.held) {
    model.rings.Release(each);
  }
  for (int ahead = 0; ahead < kFar; ++ahead) {
    RC_ASSERT(model.rings.link(ahead) == 0);
    RC_ASSERT(model.rings.memory(ahead).count == 0U);
  }
}

RC_GTEST_PROP(ReloadRings, ReserveTheTimeThatTheCopyTakes, ()) {
  ReloadRings rings(*rc::gen::inRange(2, 40));
  const double iterations = AnyIterations();
  const auto place = rings.Reserve(AnyCache(), iterations, 10, {1'000'000});
  RC_ASSERT(place.has_value());
  std::int64_t reserved = 0;
  for (int ahead = 0; ahead < kFar; ++ahead) {
    reserved += rings.link(ahead);
  }
  // Rounded up, by less than one unit in each iteration.
  const double excess = static_cast<double>(reserved) - iterations * kIteration;
  RC_ASSERT(excess >= 0.0);
  RC_ASSERT(excess < Span(iterations));
}

TEST(ReloadRings, TheCopyEndsBeforeTheIterationThatVerifies) {
  ReloadRings rings(20);
  const FullCacheSize cache{.group = {100}, .group_slots = 1, .slots = 10, .limit = 100};
  const auto place = rings.Reserve(cache, 2.5, 8, {100'000});
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->begin, 5);
  EXPECT_EQ(place->verify, 8);
  EXPECT_EQ(rings.link(4), 0);
  EXPECT_GT(rings.link(5), 0);
  EXPECT_GT(rings.link(7), 0);
  EXPECT_EQ(rings.link(8), 0);
  // Ten slots are there, and a verify of 8 drafts adds 9.
  EXPECT_EQ(rings.memory(4), Bytes{});
  EXPECT_EQ(rings.memory(5), Bytes{1900});
  EXPECT_EQ(rings.memory(8), Bytes{1900});
  EXPECT_EQ(rings.memory(9), Bytes{});
}

TEST(ReloadRings, TheEarlierOfTwoEquallyNearIsTaken) {
  ReloadRings rings(20);
  const FullCacheSize cache{.group = {1}, .group_slots = 1, .slots = 1, .limit = 100};
  std::vector<std::int64_t> verifies;
  for (int i = 0; i < 5; ++i) {
    verifies.push_back(rings.Reserve(cache, 1.0, 10, {1000})->verify);
  }
  EXPECT_EQ(verifies, (std::vector<std::int64_t>{10, 9, 11, 8, 12}));
}

TEST(ReloadRings, AReloadLongerThanTheWindowGetsAPlace) {
  ReloadRings rings(8);
  const FullCacheSize cache{.group = {1}, .group_slots = 1, .slots = 1, .limit = 100};
  const auto first = rings.Reserve(cache, 30.5, 5, {1000});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->begin, 0);
  EXPECT_EQ(first->verify, 31);
  // The link is taken, so the next one waits until it is free.
  EXPECT_FALSE(rings.Reserve(cache, 30.5, 5, {1000}));
  for (int i = 0; i < 31; ++i) {
    EXPECT_FALSE(rings.Reserve(cache, 30.5, 5, {1000}));
    rings.Advance();
  }
  EXPECT_TRUE(rings.Reserve(cache, 30.5, 5, {1000}));
}

TEST(ReloadRings, AReloadOnALinkThatHardlyMovesGetsAPlace) {
  ReloadRings rings(8);
  const FullCacheSize cache{.group = {1}, .group_slots = 1, .slots = 1, .limit = 100};
  const auto place = rings.Reserve(cache, 1e15, 5, {1000});
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->begin, 0);
  EXPECT_GT(place->verify, 1000);
  EXPECT_EQ(rings.link(0), kIteration);
}

TEST(ReloadRings, ACacheLargerThanTheRoomHasNoPlace) {
  ReloadRings rings(8);
  const FullCacheSize cache{.group = {10}, .group_slots = 1, .slots = 1, .limit = 100};
  // The earliest verify, one iteration ahead, needs three slots.
  EXPECT_FALSE(rings.Reserve(cache, 1.0, 5, {29}));
  const auto place = rings.Reserve(cache, 1.0, 5, {30});
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->verify, 1);
}

// The link serves the reloads one after the other, those that begin together by their verifies. Of
// copies that differ by less than a factor of two, none is late.
RC_GTEST_PROP(ReloadRings, ASerialLinkKeepsTheReservations, ()) {
  ReloadRings rings(*rc::gen::inRange(2, 40));
  const double base = AnyIterations();
  std::vector<std::pair<Reservation, double>> reloads;
  const auto steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    const double iterations = base * *rc::gen::inRange(8, 16) / 8.0;
    const auto place =
        rings.Reserve({.group = {1}}, iterations, *rc::gen::inRange(0, 40), {1'000'000});
    if (place) {
      reloads.emplace_back(*place, iterations);
    }
    if (*rc::gen::arbitrary<bool>()) {
      rings.Advance();
    }
  }
  std::sort(reloads.begin(), reloads.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.verify) < std::pair(b.first.begin, b.first.verify);
  });
  double free = 0.0;
  for (const auto& [reservation, iterations] : reloads) {
    free = std::max(free, static_cast<double>(reservation.begin)) + iterations;
    RC_ASSERT(free <= static_cast<double>(reservation.verify) + 1e-6);
  }
}

}  // namespace
}  // namespace vericache
