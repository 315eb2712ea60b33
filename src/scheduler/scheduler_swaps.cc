// Under the policy full: full caches take turns in fast memory where not all of them fit.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace vericache {
namespace {

// Tokens that a full cache stays for at least, once it is there; it stays at least twice as long as
// its copy takes, too, so that the next one can come meanwhile.
constexpr int kTurn = 64;
constexpr double kTurnPerReload = 2.0;

}  // namespace

// New requests and those without a turn are served in the order in which they began to wait.
bool Scheduler::NewIsNext() const {
  if (waiting_.empty() || active() >= options_.batch ||
      memory_ + waiting_.front().need.memory > options_.memory) {
    return false;
  }
  return parked_.empty() || waiting_.front().since < active_.at(parked_.front()).parked;
}

void Scheduler::SwapIn() {
  while (!parked_.empty() && !NewIsNext()) {
    const int request = parked_.front();
    Job& job = at(request);
    if (!MakeRoom(job.need.resident)) {
      return;
    }
    parked_.pop_front();
    resident_ += job.need.resident;
    job.resident = true;
    job.phase = Phase::kSwapIn;
    job.reload = Reload::kStarted;
    job.turn = 0;
    ++counts_.reloads;
    plan_.reload.push_back(request);
  }
}

// Whether there is room. If not, those that had their turn leave, the longest first, where that
// makes room enough; it may be there at once or soon.
bool Scheduler::MakeRoom(Bytes needed) {
  Bytes room = options_.room - resident_;
  std::vector<int> had_their_turn;
  Bytes theirs;
  for (const auto& [request, job] : active_) {
    if (job.phase == Phase::kSwapOut) {
      room += job.need.resident;  // soon
    } else if (job.phase == Phase::kDecode &&
               job.turn >= std::max<double>(kTurn, kTurnPerReload * ReloadIterations(job))) {
      had_their_turn.push_back(request);
      theirs += job.need.resident;
    }
  }
  if (room + theirs < needed) {
    return false;
  }
  std::sort(had_their_turn.begin(), had_their_turn.end(),
            [this](int a, int b) { return std::pair(-at(a).turn, a) < std::pair(-at(b).turn, b); });
  for (const int request : had_their_turn) {
    if (room >= needed) {
      break;
    }
    Job& job = at(request);
    room += job.need.resident;
    plan_.swap_out.push_back(request);
    if (job.stored) {
      Park(job, request);
    } else {
      job.phase = Phase::kSwapOut;
    }
  }
  return resident_ + needed <= options_.room;
}

void Scheduler::Park(Job& job, int request) {
  Check(job.resident, "it leaves fast memory once");
  job.phase = Phase::kParked;
  job.stored = true;
  job.resident = false;
  job.parked = now();
  resident_ -= job.need.resident;
  parked_.push_back(request);
}

}  // namespace vericache
