#include "store/link.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/full_store.h"
#include "unit_support/transfers.h"

namespace vericache {
namespace {

using testing::Await;
using testing::Gate;
using testing::StartOne;
using Clock = std::chrono::steady_clock;
using Direction = Transfer::Direction;
using Transfers = std::vector<std::shared_ptr<Transfer>>;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

RC_GTEST_PROP(Link, MovesInOrderAndOneAtATime, ()) {
  const auto steps = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 6));
  std::vector<std::pair<std::size_t, int>> seen;
  std::atomic<int> moving{0};
  std::atomic<bool> overlapped{false};
  Link link;
  Transfers transfers;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    transfers.push_back(StartOne(link, steps[i], [&, i](int step) {
      overlapped = overlapped || moving.fetch_add(1) != 0;
      seen.emplace_back(i, step);
      moving.fetch_sub(1);
      return Bytes{1};
    }));
  }
  std::vector<std::pair<std::size_t, int>> expected;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Await(link, *transfers[i]);
    for (int step = 0; step < steps[i]; ++step) {
      expected.emplace_back(i, step);
    }
  }
  RC_ASSERT(seen == expected);
  RC_ASSERT(!overlapped);
}

TEST(Link, KeepsTheStepsOfATransferTogetherWhoeverStartsIt) {
  constexpr int kThreads = 4;
  constexpr int kEach = 25;
  constexpr int kSteps = 10;
  std::vector<int> seen;
  Link link;
  Transfers transfers(kThreads * kEach);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = thread * kEach; i < (thread + 1) * kEach; ++i) {
        transfers[static_cast<std::size_t>(i)] = StartOne(link, kSteps, [&seen, i](int) {
          seen.push_back(i);
          return Bytes{1};
        });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& transfer : transfers) {
    Await(link, *transfer);
  }
  ASSERT_EQ(seen.size(), transfers.size() * kSteps);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], seen[i / kSteps * kSteps]);
  }
}

TEST(Link, CountsBytesAndSeconds) {
  Link link;
  const auto to_fast = StartOne(link, 3, [](int step) { return Bytes{step == 0 ? 100U : 10U}; });
  const auto to_store = StartOne(
      link, 2,
      [](int) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return Bytes{7};
      },
      Direction::kToStore);
  const auto nothing = StartOne(link, 0, [](int) { return Bytes{1}; });
  Await(link, *nothing);
  EXPECT_TRUE(to_fast->done() && to_store->done());
  EXPECT_FALSE(to_fast->error() || to_store->error() || nothing->error());
  EXPECT_EQ(to_fast->bytes(), Bytes{120});
  EXPECT_EQ(to_store->bytes(), Bytes{14});
  EXPECT_EQ(nothing->bytes(), Bytes{0});
  EXPECT_GE(to_store->seconds(), 0.01);
  EXPECT_EQ(link.moved(), Bytes{120});
  EXPECT_DOUBLE_EQ(link.busy_seconds(),
                   to_fast->seconds() + to_store->seconds() + nothing->seconds());
}

TEST(Link, AnErrorEndsItsTransferAndNoOther) {
  Link link;
  int steps = 0;
  const auto failing = StartOne(link, 5, [&steps](int step) -> Bytes {
    ++steps;
    return step < 2 ? Bytes{8} : throw StoreError("/some/file: wrong checksum");
  });
  const auto unexpected =
      StartOne(link, 1, [](int) -> Bytes { throw std::out_of_range("no such group"); });
  const auto other = StartOne(link, 2, [](int) { return Bytes{1}; });
  Await(link, *other);
  EXPECT_EQ(failing->error(), "/some/file: wrong checksum");
  EXPECT_EQ(failing->bytes(), Bytes{16});
  EXPECT_EQ(steps, 3);
  ASSERT_TRUE(unexpected->error());
  EXPECT_NE(unexpected->error()->find("no such group"), std::string::npos);
  EXPECT_FALSE(other->error());
  EXPECT_EQ(link.moved(), Bytes{18});
}

TEST(Link, LetsGoOfWhatATransferUsedOnceItIsDone) {
  Link link;
  auto used = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = used;
  const auto transfer = StartOne(link, 1, [used = std::move(used)](int) { return Bytes{1}; });
  Await(link, *transfer);
  EXPECT_TRUE(watch.expired());
}

TEST(Link, CancelEndsATransferBeforeItsNextStep) {
  Link link;
  std::promise<Transfer*> self;
  int steps = 0;
  const auto transfer = StartOne(link, 10, [&steps, whom = self.get_future().share()](int step) {
    ++steps;
    if (step == 3) {
      whom.get()->Cancel();
    }
    return Bytes{2};
  });
  self.set_value(transfer.get());
  const auto other = StartOne(link, 1, [](int) { return Bytes{1}; });
  Await(link, *other);
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(transfer->bytes(), Bytes{8});
  EXPECT_TRUE(transfer->error());
  EXPECT_FALSE(other->error());
}

TEST(Link, ATransferCancelledInTheQueueMovesNothing) {
  Link link;
  Gate gate(link);
  std::atomic<int> steps{0};
  const auto queued = StartOne(link, 3, [&steps](int) {
    ++steps;
    return Bytes{1};
  });
  queued->Cancel();
  EXPECT_FALSE(queued->done());
  gate.Open();
  Await(link, *queued);
  EXPECT_EQ(steps, 0);
  EXPECT_TRUE(queued->error());
  EXPECT_FALSE(gate.transfer().error());
}

TEST(Link, ItsEndCancelsWhatIsLeft) {
  // Uncancelled, the first transfer would take 20 s, and each of the others as long.
  constexpr int kSteps = 4000;
  std::promise<void> begun;
  Transfers transfers;
  {
    Link link(200.0);
    transfers.push_back(StartOne(link, kSteps, [&begun](int step) {
      if (step == 0) {
        begun.set_value();
      }
      return Bytes{1};
    }));
    for (int i = 0; i < 20; ++i) {
      transfers.push_back(StartOne(link, kSteps, [](int) { return Bytes{1}; }));
    }
    begun.get_future().wait();
  }
  for (const auto& transfer : transfers) {
    EXPECT_TRUE(transfer->done());
    EXPECT_TRUE(transfer->error());
  }
  EXPECT_LT(transfers.front()->bytes(), Bytes{kSteps});
  EXPECT_EQ(transfers.back()->bytes(), Bytes{0});
}

TEST(Link, AnEmulatedBandwidthHoldsCopiesToFastMemoryBack) {
  Link link(1e6);
  const Clock::time_point start = Clock::now();
  const auto first = StartOne(link, 4, [](int) { return Bytes{25'000}; });
  const auto second = StartOne(link, 1, [](int) { return Bytes{50'000}; });
  Await(link, *first);
  EXPECT_GE(SecondsSince(start), 0.1);
  Await(link, *second);
  EXPECT_GE(SecondsSince(start), 0.15);
  EXPECT_GE(first->seconds(), 0.1);
  EXPECT_GE(second->seconds(), 0.045);  // it may catch up what the first overslept
  EXPECT_GE(link.busy_seconds(), 0.15);
}

TEST(Link, AnEmulatedBandwidthDoesNotHoldCopiesToTheStoreBack) {
  Link link(1e6);
  const auto transfer =
      StartOne(link, 4, [](int) { return Bytes{10'000'000}; }, Direction::kToStore);
  Await(link, *transfer);
  EXPECT_LT(transfer->seconds(), 20.0);  // the emulated link would take 40
}

// What is due first goes first, also between the steps of a transfer that began before.
TEST(Link, TheMostUrgentGoesFirst) {
  Link link;
  Gate gate(link);
  std::vector<int> order;
  const auto note = [&order](int which) {
    return [&order, which](int) {
      order.push_back(which);
      return Bytes{1};
    };
  };
  const auto late = StartOne(
      link, 2,
      [&](int step) {
        order.push_back(9);
        if (step == 0) {
          StartOne(link, 1, note(4), Transfer::Direction::kToFastMemory, 4);
        }
        return Bytes{1};
      },
      Transfer::Direction::kToFastMemory, 9);
  StartOne(link, 1, note(5), Transfer::Direction::kToFastMemory, 5);
  StartOne(link, 1, note(6), Transfer::Direction::kToFastMemory, 5);
  StartOne(link, 1, note(1), Transfer::Direction::kToStore, Transfer::kAtOnce);
  gate.Open();
  Await(link, *late);
  EXPECT_EQ(order, (std::vector<int>{1, 5, 6, 9, 4, 9}));
}

}  // namespace
}  // namespace vericache
