// The path between fast memory and the full store: serial, on a thread of its own. What is due
// first goes first, also between the steps of another transfer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/types.h"

namespace vericache {

// A copy over the link. What it moves must stay alive until done() or until the link is gone.
class Transfer {
 public:
  enum class Direction { kToFastMemory, kToStore };

  // Goes before every transfer that has a due date.
  static constexpr std::int64_t kAtOnce = std::numeric_limits<std::int64_t>::min();

  // `steps` calls of `move`, which moves one piece and returns its bytes, or throws StoreError.
  // `due`: the smallest goes first; equal ones in the order of their starts.
  Transfer(Direction direction, int steps, std::int64_t due, std::function<Bytes(int step)> move)
      : direction_(direction), steps_(steps), due_(due), move_(std::move(move)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Ends it before its next step.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  // Once it is done: what went wrong, or nothing; the bytes moved, and the link's time for them.
  const std::optional<std::string>& error() const { return error_; }
  Bytes bytes() const { return bytes_; }
  double seconds() const { return seconds_; }

 private:
  friend class Link;

  Direction direction_;
  int steps_;
  std::int64_t due_;
  std::function<Bytes(int step)> move_;
  int moved_steps_ = 0;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> done_{false};
  std::optional<std::string> error_;
  Bytes bytes_;
  double seconds_ = 0.0;
};

class Link {
 public:
  // `bandwidth`: bytes/s that copies to fast memory are held to, where a link is emulated. Copies
  // to the store are not held back: PCIe and networks carry both directions at once.
  explicit Link(std::optional<double> bandwidth = std::nullopt);
  // Cancels what is left.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Queues a transfer.
  void Start(std::shared_ptr<Transfer> transfer);

  // Returns once a transfer has ended since the last call, or none is left, or `stop` says yes.
  void WaitForOne(const std::function<bool()>& stop);

  // Seconds in which it was busy, and the bytes moved to fast memory.
  double busy_seconds() const;
  Bytes moved() const;

 private:
  void Run();
  void Step(Transfer& transfer);

  std::optional<double> bandwidth_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable news_;
  std::vector<std::shared_ptr<Transfer>> queue_;  // in the order of the starts
  bool ended_one_ = false;
  bool closing_ = false;
  double busy_seconds_ = 0.0;
  Bytes moved_;
  std::chrono::steady_clock::time_point free_at_;  // when the emulated link is free again
  std::thread thread_;
};

}  // namespace vericache
