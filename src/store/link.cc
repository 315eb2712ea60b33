#include "store/link.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/clock.h"
#include "store/full_store.h"

namespace vericache {
namespace {

// A step that starts so long after the emulated link was free follows the one before it.
constexpr Clock::duration kSlack = std::chrono::milliseconds(2);

}  // namespace

Link::Link(std::optional<double> bandwidth) : bandwidth_(bandwidth), thread_([this] { Run(); }) {}

Link::~Link() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for (const auto& transfer : queue_) {
      transfer->Cancel();
    }
  }
  work_.notify_all();
  thread_.join();
}

void Link::Start(std::shared_ptr<Transfer> transfer) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(transfer));
  }
  work_.notify_all();
}

void Link::WaitForOne(const std::function<bool()>& stop) {
  std::unique_lock lock(mutex_);
  while (!ended_one_ && !queue_.empty() && !(stop && stop())) {
    news_.wait_for(lock, std::chrono::milliseconds(50));
  }
  ended_one_ = false;
}

double Link::busy_seconds() const {
  const std::lock_guard lock(mutex_);
  return busy_seconds_;
}

Bytes Link::moved() const {
  const std::lock_guard lock(mutex_);
  return moved_;
}

void Link::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    const std::shared_ptr<Transfer> transfer =
        *std::min_element(queue_.begin(), queue_.end(),
                          [](const auto& a, const auto& b) { return a->due_ < b->due_; });
    lock.unlock();
    const double before = transfer->seconds_;
    const Bytes moved = transfer->bytes_;
    Step(*transfer);
    const bool ends = transfer->error_ || transfer->moved_steps_ == transfer->steps_;
    if (ends) {
      transfer->move_ = nullptr;  // lets go of what it captured
    }
    lock.lock();
    busy_seconds_ += transfer->seconds_ - before;
    if (transfer->direction_ == Transfer::Direction::kToFastMemory) {
      moved_ += transfer->bytes_ - moved;
    }
    if (ends) {
      std::erase(queue_, transfer);
      ended_one_ = true;
      transfer->done_.store(true, std::memory_order_release);
      news_.notify_all();
    }
  }
}

void Link::Step(Transfer& transfer) {
  const Clock::time_point start = Clock::now();
  if (transfer.cancelled_.load(std::memory_order_relaxed)) {
    transfer.error_ = "cancelled";
    return;
  }
  try {
    if (transfer.moved_steps_ < transfer.steps_) {
      const Bytes bytes = transfer.move_(transfer.moved_steps_++);
      transfer.bytes_ += bytes;
      if (bandwidth_ && transfer.direction_ == Transfer::Direction::kToFastMemory) {
        // From the end of the step before where this one follows it, so that sleeps that last too
        // long add up to the bandwidth all the same.
        free_at_ = (start - free_at_ < kSlack ? free_at_ : start) +
                   std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                       static_cast<double>(bytes.count) / *bandwidth_));
        std::this_thread::sleep_until(free_at_);
      }
    }
  } catch (const StoreError& error) {
    transfer.error_ = error.what();
  } catch (const std::exception& error) {
    transfer.error_ = std::string("the full store failed: ") + error.what();
  }
  transfer.seconds_ += SecondsSince(start);
}

}  // namespace vericache
