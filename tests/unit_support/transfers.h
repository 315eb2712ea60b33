// Transfers over a link, for tests.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "base/types.h"
#include "store/link.h"

namespace vericache::testing {

// A transfer on its way.
inline std::shared_ptr<Transfer> StartOne(
    Link& link, int steps, std::function<Bytes(int)> move,
    Transfer::Direction direction = Transfer::Direction::kToFastMemory, std::int64_t due = 0) {
  auto transfer = std::make_shared<Transfer>(direction, steps, due, std::move(move));
  link.Start(transfer);
  return transfer;
}

inline void Await(Link& link, const Transfer& transfer) {
  while (!transfer.done()) {
    link.WaitForOne(nullptr);
  }
}

// A transfer under way that moves a byte once Open() is called. To be declared after the link: a
// test that ends early must not leave the link waiting.
class Gate {
 public:
  explicit Gate(Link& link) {
    transfer_ = StartOne(link, 1, [opened = opened_.get_future().share()](int) {
      opened.wait();
      return Bytes{1};
    });
  }
  void Open() { opened_.set_value(); }
  const Transfer& transfer() const { return *transfer_; }

 private:
  std::promise<void> opened_;
  std::shared_ptr<Transfer> transfer_;
};

}  // namespace vericache::testing
