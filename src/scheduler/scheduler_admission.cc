// Who begins: in what order, and whether there is room.
#include <algorithm>
#include <cstddef>

#include "scheduler/scheduler.h"

namespace vericache {

// Under `auto` nothing crosses the link as long as the full caches of all who run and wait, as far
// as the batch takes them, fit into fast memory beside the compressed ones.
bool Scheduler::AllStay() const {
  if (options_.policy != Policy::kAuto || !options_.reloads || storing_ > 0) {
    return false;
  }
  Bytes room = resident_;
  Bytes memory = memory_;
  for (const auto& [request, job] : active_) {
    room += job.stays ? Bytes{} : Staying(job.need);
  }
  int count = active();
  for (const Waiting& each : waiting_) {
    if (count++ == options_.batch) {
      break;
    }
    room += NeededRoom(each.need);
    memory += each.need.memory + Staying(each.need);
  }
  return room <= options_.room && memory <= options_.memory;
}

bool Scheduler::WaitsForShared(const Waiting& waiting) const {
  if (!waiting.need.shared) {
    return false;
  }
  const auto [other, tokens] = *waiting.need.shared;
  if (const auto job = active_.find(other); job != active_.end()) {
    const Phase phase = job->second.phase;
    return phase == Phase::kLoading || (phase == Phase::kPrefill && job->second.prefilled < tokens);
  }
  return std::ranges::binary_search(waiting_, other, {}, &Waiting::request);
}

// The first in line, unless it could only wait for the prompts that are being computed; then the
// first one that is shorter than what is left of the oldest of these, since that one will pass it.
std::deque<Scheduler::Waiting>::const_iterator Scheduler::NextWaiting() const {
  constexpr std::size_t kSeen = 64;  // of a long line
  int oldest = 0;
  int all = 0;
  for (const auto& [request, job] : active_) {
    // What comes from a store takes no rows meanwhile, but the room for its full cache.
    if (job.phase == Phase::kPrefill || (job.phase == Phase::kLoading && job.storing)) {
      const int left = job.need.prompt_tokens - job.prefilled;
      oldest = all == 0 ? left : oldest;
      all += left;
    }
  }
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(std::min(kSeen, waiting_.size()));
  const auto next = std::find_if(waiting_.begin(), end, [&](const Waiting& each) {
    return !WaitsForShared(each) &&
           (all < options_.prefill_chunk || each.need.prompt_tokens < oldest);
  });
  return next == end ? waiting_.end() : next;
}

// Whoever runs must find room for its own full cache when it is its turn; and where others hold
// room for their prefills already, whoever verifies must find it beside all of these.
bool Scheduler::HasRoom(const Job& job) const {
  const bool verifies = Verifies(options_.policy);
  const Bytes own = job.stays ? Bytes{} : Staying(job.need);
  Bytes largest = own;
  Bytes beside = job.prefill;
  for (const auto& [request, other] : active_) {
    if (!other.stays && verifies) {
      largest = std::max(largest, Staying(other.need));
      beside = other.storing ? beside : std::max(beside, job.prefill + Staying(other.need));
    }
  }
  return resident_ + job.need.resident + largest <= options_.room &&
         (storing_ == 0 || resident_ + job.need.resident + prefill_ + beside <= options_.room) &&
         memory_ + job.need.memory <= options_.memory;
}

// Beside all that is held or promised.
bool Scheduler::HasRoomNow(Bytes room) const {
  return resident_ + room + prefill_ + std::max(transient_, rings_.peak_memory()) <= options_.room;
}

void Scheduler::AdmitNew() {
  const bool all_stay = AllStay();
  while (active() < options_.batch && !claiming_) {
    const auto next = NextWaiting();
    if (next == waiting_.end() || (Swaps() && !NewIsNext())) {
      break;
    }
    const int request = next->request;
    Job job{.need = next->need};
    if (all_stay && HasRoomNow(NeededRoom(next->need))) {
      job.stays = true;
      job.need.resident = NeededRoom(next->need);
      job.need.memory += Staying(next->need);
    } else if (options_.reloads && options_.policy != Policy::kFull) {
      job.storing = true;
      job.prefill = FullCacheSize{.group = options_.group,
                                  .group_slots = options_.group_slots,
                                  .slots = job.need.prompt_tokens,
                                  .limit = job.need.prompt_tokens}
                        .bytes();
    }
    if (Swaps() ? !MakeRoom(job.need.resident, job.need.memory) : !HasRoom(job)) {
      break;
    }
    resident_ += job.need.resident;
    memory_ += job.need.memory;
    prefill_ += job.prefill;
    if (job.storing) {
      ++storing_;
      claiming_ = request;
    } else {
      plan_.admit.push_back(request);
    }
    active_.emplace(request, job);
    waiting_.erase(next);
    BeginClaimed();
  }
  BeginClaimed();
}

// New reservations leave out what a prefill claims, and the old ones run off, so its turn comes.
void Scheduler::BeginClaimed() {
  if (claiming_ && at(*claiming_).phase != Phase::kLeaving && HasRoomNow({})) {
    plan_.admit.push_back(*claiming_);
    claiming_.reset();
  }
}

}  // namespace vericache
