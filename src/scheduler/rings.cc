#include "scheduler/rings.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace vericache {
namespace {

// Of a reload, in iterations: what takes longer is planned as if it took this long.
constexpr double kLongest = 1 << 20;

}  // namespace

ReloadRings::Slot& ReloadRings::at(std::int64_t iteration) {
  const auto ahead = static_cast<std::size_t>(iteration - now_);
  if (ahead >= slots_.size()) {
    slots_.resize(ahead + 1);
  }
  return slots_[ahead];
}

std::int64_t ReloadRings::link(int ahead) const {
  const auto i = static_cast<std::size_t>(ahead);
  return i < slots_.size() ? slots_[i].link : 0;
}

Bytes ReloadRings::memory(int ahead) const {
  const auto i = static_cast<std::size_t>(ahead);
  return i < slots_.size() ? slots_[i].memory : Bytes{};
}

Bytes ReloadRings::peak_memory() const {
  Bytes peak;
  for (const Slot& slot : slots_) {
    peak = std::max(peak, slot.memory);
  }
  return peak;
}

bool ReloadRings::Fits(int begin, int verify, std::int64_t share, Bytes bytes, Bytes room) const {
  if (bytes > room) {
    return false;
  }
  for (int i = begin; i <= verify; ++i) {
    if ((i < verify && link(i) + share > kIteration) || memory(i) + bytes > room) {
      return false;
    }
  }
  return true;
}

std::optional<Reservation> ReloadRings::Reserve(const FullCacheSize& cache, double iterations,
                                                int draft_length, Bytes room) {
  Check(iterations > 0.0, "a reload takes time");
  iterations = std::min(iterations, kLongest);
  const int span = std::max(1, static_cast<int>(std::ceil(iterations)));
  const auto share =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(kIteration) * iterations / span));
  const int last = std::max(window_ - 1, span);
  const int anchor = std::clamp(draft_length, span, last);
  const int reach = std::max(anchor - span, last - anchor);
  for (int off = 0; off <= reach; ++off) {
    for (const int verify : {anchor - off, anchor + off}) {
      if (verify < span || verify > last) {
        continue;
      }
      const Bytes bytes = cache.bytes(verify + 1);
      if (!Fits(verify - span, verify, share, bytes, room)) {
        continue;
      }
      const Reservation reservation{
          .begin = now_ + verify - span, .verify = now_ + verify, .bytes = bytes, .link = share};
      Restore(reservation);
      return reservation;
    }
  }
  return std::nullopt;
}

void ReloadRings::Restore(const Reservation& reservation) {
  for (std::int64_t i = std::max(now_, reservation.begin); i <= reservation.verify; ++i) {
    Slot& slot = at(i);
    slot.link += i < reservation.verify ? reservation.link : 0;
    slot.memory += reservation.bytes;
  }
}

void ReloadRings::Release(const Reservation& reservation) {
  for (std::int64_t i = std::max(now_, reservation.begin); i <= reservation.verify; ++i) {
    Slot& slot = at(i);
    slot.link -= i < reservation.verify ? reservation.link : 0;
    slot.memory -= reservation.bytes;
  }
}

void ReloadRings::Advance() {
  ++now_;
  if (!slots_.empty()) {
    slots_.pop_front();
  }
}

}  // namespace vericache
