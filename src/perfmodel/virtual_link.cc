#include "perfmodel/virtual_link.h"

#include <algorithm>

namespace vericache {

std::size_t VirtualLink::MostUrgent() const {
  const auto first =
      std::min_element(pending_.begin(), pending_.end(),
                       [](const Pending& a, const Pending& b) { return a.due < b.due; });
  return static_cast<std::size_t>(first - pending_.begin());
}

void VirtualLink::RunUntil(double now) {
  while (!pending_.empty() && time_ < now) {
    const std::size_t i = MostUrgent();
    Pending& pending = pending_[i];
    if (!pending.served) {
      pending.served = true;
      pending.transfer.begin = time_;
    }
    // Compared as times, so that what next() said has come then, whatever the rounding.
    const double end = time_ + pending.left;
    if (end > now) {
      busy_ += now - time_;
      pending.left = end - now;
      time_ = now;
      return;
    }
    busy_ += pending.left;
    time_ = end;
    pending.transfer.end = end;
    ended_.push_back(pending.transfer);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  time_ = std::max(time_, now);
}

void VirtualLink::Start(int request, Bytes bytes, double seconds, std::int64_t due, double now) {
  RunUntil(now);
  if (pending_.empty()) {
    time_ = now;  // which a hair of Ended's may have passed
  }
  pending_.push_back({.transfer = {.request = request, .bytes = bytes, .seconds = seconds},
                      .due = due,
                      .left = seconds});
}

std::optional<VirtualLink::Transfer> VirtualLink::Ended(double now) {
  RunUntil(now);
  if (ended_.empty()) {
    return std::nullopt;
  }
  const Transfer transfer = ended_.front();
  ended_.erase(ended_.begin());
  return transfer;
}

std::optional<double> VirtualLink::next() const {
  if (!ended_.empty()) {
    return ended_.front().end;
  }
  return pending_.empty() ? std::nullopt : std::optional(time_ + pending_[MostUrgent()].left);
}

bool VirtualLink::busy(double now) {
  RunUntil(now);
  return !pending_.empty();
}

double VirtualLink::busy_seconds(double now) {
  RunUntil(now);
  return busy_;
}

}  // namespace vericache
