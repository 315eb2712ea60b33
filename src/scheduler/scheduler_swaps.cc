// Under the policy full: full caches take turns in fast memory where not all of them fit.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace vericache {
namespace {

// A full cache stays at least twice as long as its copy takes, so that the next one can come
// meanwhile.
constexpr double kTurnPerReload = 2.0;

// The rows of so many tokens are copied when they leave, so that fast memory is free at once.
constexpr int kCopied = 256;

}  // namespace

// New requests and those without a turn are served in the order in which they began to wait.
bool Scheduler::NewIsNext() const {
  const auto next = NextWaiting();
  if (next == waiting_.end() || active() >= options_.batch) {
    return false;
  }
  const auto& [request, need, since] = *next;
  // What the store holds of all of them stays, and whoever's turn it is must find room beside it.
  Bytes largest = need.resident;
  for (const auto& [other, job] : active_) {
    largest = std::max(largest, job.need.resident);
  }
  if (memory_ - resident_ + (need.memory - need.resident) + largest > options_.memory) {
    return false;
  }
  return parked_.empty() || since < active_.at(parked_.front()).parked;
}

void Scheduler::SwapIn() {
  while (!parked_.empty() && !NewIsNext()) {
    const int request = parked_.front();
    Job& job = at(request);
    if (!MakeRoom(job.need.resident, job.need.resident)) {
      return;
    }
    parked_.pop_front();
    resident_ += job.need.resident;
    memory_ += job.need.resident;
    job.resident = true;
    job.phase = Phase::kSwapIn;
    job.reload = Reload::kStarted;
    job.turn = 0;
    ++counts_.reloads;
    plan_.reload.push_back(request);
  }
}

// Whether there is so much fast memory, and memory of the machine. If not, those that had their
// turn leave, the longest first, where that makes room enough; it may be there at once or soon.
bool Scheduler::MakeRoom(Bytes room, Bytes memory) {
  // More than is free, in fast memory or at all.
  Bytes missing;
  if (resident_ + room > options_.room) {
    missing = resident_ + room - options_.room;
  }
  if (memory_ + memory > options_.memory) {
    missing = std::max(missing, memory_ + memory - options_.memory);
  }
  if (missing == Bytes{}) {
    return true;
  }
  Bytes leaving;  // soon
  std::vector<int> had_their_turn;
  Bytes theirs;
  for (const auto& [request, job] : active_) {
    if (job.phase == Phase::kSwapOut) {
      leaving += job.need.resident;
    } else if (job.phase == Phase::kDecode &&
               job.turn >=
                   std::max<double>(options_.turn, kTurnPerReload * ReloadIterations(job))) {
      had_their_turn.push_back(request);
      theirs += job.need.resident;
    }
  }
  if (leaving + theirs < missing) {
    return false;
  }
  std::sort(had_their_turn.begin(), had_their_turn.end(),
            [this](int a, int b) { return std::pair(-at(a).turn, a) < std::pair(-at(b).turn, b); });
  for (const int request : had_their_turn) {
    if (leaving >= missing) {
      break;
    }
    Job& job = at(request);
    leaving += job.need.resident;
    const bool at_once = job.stored && job.turn <= kCopied;
    plan_.swap_out.push_back({.request = request, .at_once = at_once});
    if (at_once) {
      Park(job, request);
    } else {
      job.phase = Phase::kSwapOut;
    }
  }
  return resident_ + room <= options_.room && memory_ + memory <= options_.memory;
}

void Scheduler::Park(Job& job, int request) {
  Check(job.resident, "it leaves fast memory once");
  job.phase = Phase::kParked;
  job.stored = true;
  job.resident = false;
  job.parked = now();
  resident_ -= job.need.resident;
  memory_ -= job.need.resident;
  parked_.push_back(request);
}

}  // namespace vericache
