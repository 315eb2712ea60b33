#include "scheduler/rings.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <vector>

#include "perfmodel/virtual_link.h"

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
      const auto i = static_cast<std::size_t>(iteration - each.begin);
      sum += iteration >= each.begin && i < each.link.size() ? each.link[i] : 0;
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
    const Bytes bytes = cache.bytes(ahead + 1);
    // The latest begin from which on the link has time enough, at most one iteration before that
    // on a free link.
    double time = 0.0;
    int begin = ahead;
    if (Link(rings.now() + ahead - 1) == kIteration) {
      return false;  // the copy would end an iteration early
    }
    while (time < iterations && begin > std::max(0, ahead - Span(iterations) - 1)) {
      --begin;
      time += 1.0 - static_cast<double>(Link(rings.now() + begin)) / kIteration;
    }
    bool fits = time >= iterations;
    for (int i = begin; i <= ahead; ++i) {
      fits = fits && Memory(rings.now() + i) + bytes <= room;
    }
    return fits;
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
    const auto what = *rc::gen::inRange(0, 7);
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
        RC_ASSERT(place->begin >= place->verify - Span(iterations) - 1);
        RC_ASSERT(place->verify - place->begin == static_cast<int>(place->link.size()));
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
      Reservation& reservation = model.held[which];
      if (what == 6) {
        bool fits = true;
        for (std::int64_t i = model.rings.now(); i < reservation.begin; ++i) {
          fits = fits && model.Memory(i) + reservation.bytes <= room;
        }
        const std::int64_t begin = reservation.begin;
        RC_ASSERT(model.rings.HoldFromNow(reservation, room) == fits);
        RC_ASSERT(reservation.begin == (fits ? std::min(begin, model.rings.now()) : begin));
      } else {
        model.rings.Release(reservation);
        if (what == 4) {
          model.rings.Restore(reservation);
        } else {
          model.held.erase(model.held.begin() + static_cast<std::ptrdiff_t>(which));
        }
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
  const double excess = static_cast<double>(reserved) - iterations * kIteration;  // rounded up
  RC_ASSERT(excess >= 0.0);
  RC_ASSERT(excess < 1.0);
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

// Reloads of a little more than an iteration share the iterations between them: ten of 1.25 find
// places within 16 iterations, where whole iterations for each would take 20.
TEST(ReloadRings, NoTimeOfTheLinkIsLost) {
  ReloadRings rings(17);
  const FullCacheSize cache{.group = {1}, .group_slots = 1, .slots = 1, .limit = 100};
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(rings.Reserve(cache, 1.25, 7, {1000})) << i;
  }
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

// A serial link that does first what is due first keeps every reservation, whatever the lengths.
RC_GTEST_PROP(ReloadRings, ASerialLinkKeepsTheReservations, ()) {
  ReloadRings rings(*rc::gen::inRange(2, 40));
  std::vector<Reservation> reloads;
  std::vector<double> lengths;
  const auto steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    const double iterations = AnyIterations();
    const auto place =
        rings.Reserve({.group = {1}}, iterations, *rc::gen::inRange(0, 40), {1'000'000});
    if (place) {
      reloads.push_back(*place);
      lengths.push_back(iterations);
    }
    if (*rc::gen::arbitrary<bool>()) {
      rings.Advance();
    }
  }
  std::vector<std::size_t> order(reloads.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return reloads[a].begin < reloads[b].begin; });
  VirtualLink link;
  const auto collect = [&](double now) {
    while (const auto ended = link.Ended(now)) {
      RC_ASSERT(ended->end <=
                static_cast<double>(reloads[static_cast<std::size_t>(ended->request)].verify) +
                    1e-6);
    }
  };
  for (const std::size_t i : order) {
    const auto begin = static_cast<double>(reloads[i].begin);
    collect(begin);
    link.Start(static_cast<int>(i), {1}, lengths[i], reloads[i].verify, begin);
  }
  collect(1e9);
}

}  // namespace
}  // namespace vericache
