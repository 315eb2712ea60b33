// One direction of a virtual link: serial.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>

#include "base/types.h"

namespace vericache::testing {

class Lane {
 public:
  struct Transfer {
    int request = 0;
    Bytes bytes;
    double seconds = 0.0;
    double end = 0.0;
  };

  // Whether a transfer that starts now would have to wait.
  bool busy(double now) const { return free_ > now; }

  void Start(int request, Bytes bytes, double bandwidth, double now) {
    const double seconds = static_cast<double>(bytes.count) / bandwidth;
    free_ = std::max(free_, now) + seconds;
    transfers_.push_back({request, bytes, seconds, free_});
  }

  // The oldest transfer, once it has ended.
  std::optional<Transfer> Ended(double now) {
    if (transfers_.empty() || transfers_.front().end > now) {
      return std::nullopt;
    }
    const Transfer transfer = transfers_.front();
    transfers_.pop_front();
    return transfer;
  }

  // When the oldest one ends; nullopt where nothing moves.
  std::optional<double> next() const {
    return transfers_.empty() ? std::nullopt : std::optional(transfers_.front().end);
  }

 private:
  std::deque<Transfer> transfers_;
  double free_ = 0.0;
};

}  // namespace vericache::testing
