#include "store/link.h"

#include <chrono>
#include <exception>

#include "store/full_store.h"

namespace vericache {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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
    const std::shared_ptr<Transfer> transfer = queue_.front();
    lock.unlock();
    Move(*transfer);
    transfer->move_ = nullptr;  // lets go of what it captured
    lock.lock();
    busy_seconds_ += transfer->seconds_;
    if (transfer->direction_ == Transfer::Direction::kToFastMemory) {
      moved_ += transfer->bytes_;
    }
    queue_.pop_front();
    ended_one_ = true;
    transfer->done_.store(true, std::memory_order_release);
    news_.notify_all();
  }
}

void Link::Move(Transfer& transfer) {
  const Clock::time_point start = Clock::now();
  const bool held = bandwidth_ && transfer.direction_ == Transfer::Direction::kToFastMemory;
  try {
    for (int step = 0; step < transfer.steps_; ++step) {
      if (transfer.cancelled_.load(std::memory_order_relaxed)) {
        transfer.error_ = "cancelled";
        break;
      }
      transfer.bytes_ += transfer.move_(step);
      if (held) {
        std::this_thread::sleep_until(
            start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                        static_cast<double>(transfer.bytes_.count) / *bandwidth_)));
      }
    }
  } catch (const StoreError& error) {
    transfer.error_ = error.what();
  } catch (const std::exception& error) {
    transfer.error_ = std::string("the full store failed: ") + error.what();
  }
  transfer.seconds_ = SecondsSince(start);
}

}  // namespace vericache
