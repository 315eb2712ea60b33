#include "scheduler/rings.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace vericache {
namespace {

// How many iterations a reload may begin earlier than it would on a link of its own.
constexpr int kMoreIterations = 1;

std::int64_t LinkAt(const Reservation& reservation, std::int64_t iteration) {
  const auto i = static_cast<std::size_t>(iteration - reservation.begin);
  return i < reservation.link.size() ? reservation.link[i] : 0;
}

}  // namespace

double Reservation::iterations() const {
  return static_cast<double>(std::accumulate(link.begin(), link.end(), std::int64_t{0})) /
         static_cast<double>(ReloadRings::kIteration);
}

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

std::optional<Reservation> ReloadRings::Place(std::int64_t need, int verify, Bytes bytes,
                                              Bytes room) const {
  const auto span = static_cast<int>((need + kIteration - 1) / kIteration);
  const int first = std::max(0, verify - span - kMoreIterations);
  int begin = verify;
  std::int64_t time = 0;
  while (time < need) {
    if (begin == first || memory(begin) + bytes > room) {
      return std::nullopt;
    }
    const std::int64_t free = kIteration - link(--begin);
    if (time == 0 && free == 0) {
      return std::nullopt;  // it would be there early, and two would verify together
    }
    time += free;
  }
  if (memory(begin) + bytes > room) {
    return std::nullopt;
  }
  Reservation reservation{.begin = now_ + begin, .verify = now_ + verify, .bytes = bytes};
  for (int i = begin; i < verify; ++i) {
    reservation.link.push_back(kIteration - link(i));
  }
  reservation.link.front() -= time - need;
  return reservation;
}

bool ReloadRings::HoldFromNow(Reservation& reservation, Bytes room) {
  const std::int64_t earlier = reservation.begin - now_;
  for (int ahead = 0; ahead < earlier; ++ahead) {
    if (memory(ahead) + reservation.bytes > room) {
      return false;
    }
  }
  for (std::int64_t i = now_; i < reservation.begin; ++i) {
    at(i).memory += reservation.bytes;
  }
  if (earlier > 0) {
    reservation.link.insert(reservation.link.begin(), static_cast<std::size_t>(earlier), 0);
    reservation.begin = now_;
  }
  return true;
}

std::optional<Reservation> ReloadRings::Reserve(const FullCacheSize& cache, double iterations,
                                                int draft_length, Bytes room) {
  Check(iterations > 0.0, "a reload takes time");
  iterations = std::min(iterations, kLongest);
  const int span = std::max(1, static_cast<int>(std::ceil(iterations)));
  const auto need =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(kIteration) * iterations));
  const int last = std::max(window_ - 1, span);
  const int anchor = std::clamp(draft_length, span, last);
  const int reach = std::max(anchor - span, last - anchor);
  for (int off = 0; off <= reach; ++off) {
    for (const int verify : {anchor - off, anchor + off}) {
      if (verify < span || verify > last) {
        continue;
      }
      std::optional<Reservation> place = Place(need, verify, cache.bytes(verify + 1), room);
      if (place) {
        Restore(*place);
        return place;
      }
    }
  }
  return std::nullopt;
}

void ReloadRings::Restore(const Reservation& reservation) {
  for (std::int64_t i = std::max(now_, reservation.begin); i <= reservation.verify; ++i) {
    Slot& slot = at(i);
    slot.link += LinkAt(reservation, i);
    slot.memory += reservation.bytes;
  }
}

void ReloadRings::Release(const Reservation& reservation) {
  for (std::int64_t i = std::max(now_, reservation.begin); i <= reservation.verify; ++i) {
    Slot& slot = at(i);
    slot.link -= LinkAt(reservation, i);
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
