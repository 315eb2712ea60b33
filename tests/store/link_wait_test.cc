// Waiting for the end of a transfer.
#include <gtest/gtest.h>

#include <thread>

#include "store/link.h"
#include "unit_support/transfers.h"

namespace vericache {
namespace {

using testing::Await;
using testing::Gate;
using testing::StartOne;

TEST(LinkWaitForOne, ReturnsWhereNothingIsLeft) {
  Link link;
  link.WaitForOne(nullptr);
  const auto transfer = StartOne(link, 1, [](int) { return Bytes{1}; });
  Await(link, *transfer);
  link.WaitForOne([] { return false; });
}

TEST(LinkWaitForOne, ReturnsForEachThatEnded) {
  Link link;
  const auto first = StartOne(link, 1, [](int) { return Bytes{1}; });
  Gate gate(link);
  link.WaitForOne(nullptr);
  EXPECT_TRUE(first->done());
  EXPECT_FALSE(gate.transfer().done());
  std::thread opener([&gate] { gate.Open(); });
  link.WaitForOne(nullptr);
  EXPECT_TRUE(gate.transfer().done());
  opener.join();
}

TEST(LinkWaitForOne, ReturnsForOneThatEndedBeforeTheCall) {
  Link link;
  const auto first = StartOne(link, 1, [](int) { return Bytes{1}; });
  Gate gate(link);
  while (!first->done()) {
    std::this_thread::yield();
  }
  link.WaitForOne(nullptr);
  EXPECT_FALSE(gate.transfer().done());
}

TEST(LinkWaitForOne, ReturnsWhereStopSaysYes) {
  Link link;
  Gate gate(link);
  int asked = 0;
  link.WaitForOne([&asked] { return ++asked == 3; });
  EXPECT_EQ(asked, 3);
  EXPECT_FALSE(gate.transfer().done());
}

}  // namespace
}  // namespace vericache
