// The rounds of requests: how long they draft, when they verify, and when their reloads start.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace vericache {

int Scheduler::WishedDraft(const Job& job) const {
  const int most = job.Allowed(options_.draft_length);
  if (!options_.adaptive || most == 0) {
    return most;
  }
  RoundCost cost;
  cost.verify = std::max(1.0, verify_iteration_s_.value() / iteration_s_.value());
  if (options_.reloads) {
    for (const auto& [request, each] : active_) {
      cost.reload += each.phase == Phase::kRound && Reloads(each) ? ReloadIterations(each) : 0.0;
    }
    cost.reload += job.phase != Phase::kRound && Reloads(job) ? ReloadIterations(job) : 0.0;
  }
  return BestDraftLength(job.acceptance.rate(), cost, most);
}

// Where full caches are read where they lie, a round without drafts is a token of full-cache
// decoding. So drafts are taken where they pay clearly; until the costs are known, and now and then
// after, a short round looks whether they do.
int Scheduler::AutoDraft(const Job& job) {
  constexpr double kClearly = 1.05;
  constexpr int kLook = 4;
  constexpr int kOften = 4;
  constexpr int kSeldom = 256;
  if (rounds_without_drafts_ >= (costs_.known() ? kSeldom : kOften)) {
    rounds_without_drafts_ = 0;
    return std::min(kLook, options_.draft_length);
  }
  int best = 0;
  if (costs_.known()) {
    double best_speed = kClearly / costs_.RoundSeconds(0, active());
    for (int x = 1; x <= options_.draft_length; ++x) {
      const double speed =
          ExpectedTokens(job.acceptance.rate(), x) / costs_.RoundSeconds(x, active());
      if (speed > best_speed) {
        best = x;
        best_speed = speed;
      }
    }
  }
  rounds_without_drafts_ = best == 0 ? rounds_without_drafts_ + 1 : 0;
  return best;
}

// What the job drafts of a round of `drafts`: its verify adds a token of its own.
int Scheduler::Target(const Job& job, int drafts) {
  return std::clamp(job.remaining() - 1, 0, job.Allowed(drafts));
}

void Scheduler::BeginRound(Job& job, int drafts) {
  job.phase = Phase::kRound;
  job.drafted = 0;
  job.draft_ended = false;
  job.doubtful = false;
  job.target = Target(job, drafts);
  job.reload = Reload::kNone;
  job.late = false;
  job.advanced = false;
}

// Fast memory for reloads.
Bytes Scheduler::RingRoom() const {
  return options_.room - std::min(resident_ + prefill_, options_.room);
}

bool Scheduler::Reserve(Job& job, int drafts) {
  FullCacheSize cache = FullCache(job);
  if (job.phase == Phase::kRound) {
    cache.slots += job.drafted;
    if (job.complete()) {  // so what the verify adds is known
      cache.limit = cache.slots + 1;
    }
  }
  const int most = std::max(job.remaining() - 1 - job.drafted, 0);
  job.reservation =
      rings_.Reserve(cache, ReloadIterations(job), std::clamp(drafts, 0, most), RingRoom());
  return job.reservation.has_value();
}

// Places were sought by how long iterations took then, and how fast the link was. Where that proves
// wrong, whoever's reload is not due yet seeks anew, in the order of their verifies.
void Scheduler::SeekAnew() {
  constexpr double kWrong = 1.25;
  std::vector<int> anew;
  for (auto& [request, job] : active_) {
    if (job.phase != Phase::kRound || !job.reservation || job.reservation->begin <= rings_.now() ||
        job.reload != Reload::kNone) {
      continue;
    }
    const double change =
        std::min(ReloadIterations(job), ReloadRings::kLongest) / job.reservation->iterations();
    if (change > kWrong || change * kWrong < 1.0) {
      anew.push_back(request);
    }
  }
  std::ranges::sort(anew, std::greater{}, [this](int request) {
    return std::pair(at(request).reservation->verify, request);
  });
  for (const int request : anew) {
    Job& job = at(request);
    rings_.Release(*job.reservation);
    job.reservation.reset();
    job.target = Target(job, LongestRound());
    parked_.push_front(request);
  }
}

void Scheduler::BeginRounds() {
  std::deque<int> without_place;
  for (const int request : parked_) {
    Job& job = at(request);
    if (!Reloads(job)) {
      BeginRound(job, options_.policy == Policy::kAuto ? AutoDraft(job) : WishedDraft(job));
      continue;
    }
    if (job.phase == Phase::kParked) {
      BeginRound(job, LongestRound());
    }
    // In order: who does not fit yet keeps those behind it from taking its place for ever. They
    // draft all the same.
    if (!without_place.empty() || !Reserve(job, WishedDraft(job) - job.drafted)) {
      without_place.push_back(request);
      continue;
    }
    const auto ahead = static_cast<int>(std::min<std::int64_t>(
        job.reservation->verify - rings_.now(), LookAhead(options_.draft_length)));
    job.target = std::min(job.target, job.drafted + ahead);
  }
  parked_ = std::move(without_place);
}

// A draft that ended before its time looks for an earlier verify, once, as long as its reload has
// not begun. A doubtful one ends where it finds one, and goes on otherwise.
void Scheduler::SeekEarlier() {
  for (auto& [request, job] : active_) {
    const bool seeks = job.complete() ? !job.advanced : job.doubtful;
    if (job.phase != Phase::kRound || !seeks || !job.reservation || job.reload != Reload::kNone) {
      continue;
    }
    job.advanced = job.complete();
    const Reservation old = *job.reservation;
    rings_.Release(old);
    if (Reserve(job, 0) && job.reservation->verify < old.verify) {
      job.draft_ended = true;
      continue;
    }
    if (job.reservation) {
      rings_.Release(*job.reservation);
    }
    rings_.Restore(old);
    job.reservation = old;
  }
}

// All that are ready begin together, once nobody's round is under way. Each reload starts as far
// ahead of the common verify as it would take alone, as the staggered ones do; the link does them
// one after the other all the same.
void Scheduler::BeginLockstep() {
  if (std::any_of(active_.begin(), active_.end(),
                  [](const auto& each) { return each.second.phase == Phase::kRound; })) {
    return;
  }
  int drafts = 0;
  for (const int request : parked_) {
    drafts = std::max(drafts, WishedDraft(at(request)));
  }
  for (const int request : parked_) {
    Job& job = at(request);
    BeginRound(job, drafts);
    if (options_.reloads) {
      const std::int64_t verify = rings_.now() + drafts;
      const auto span = static_cast<std::int64_t>(std::max(1.0, ReloadIterations(job) + 1.0));
      job.reservation = Reservation{.begin = std::max(rings_.now(), verify - span),
                                    .verify = verify,
                                    .bytes = FullCache(job).bytes(drafts + 1),
                                    .link = {}};
    }
  }
  parked_.clear();
}

// Reloads start when their places say so. Iterations are not all equally long, so where the link is
// idle one starts an iteration ahead of its place, if memory is free until then.
void Scheduler::StartReloads() {
  std::vector<int> due;
  double queued = 0.0;   // iterations of the link's time
  double longest = 0.0;  // of one of them, which is under way
  for (const auto& [request, job] : active_) {
    if (job.reload == Reload::kStarted) {
      const double iterations = ReloadIterations(job);
      queued += iterations;
      longest = std::max(longest, iterations);
    }
    const std::int64_t ahead = options_.policy == Policy::kLockstep ? 0 : 1;
    if (job.phase == Phase::kRound && job.reservation && job.reload == Reload::kNone &&
        job.reservation->begin <= rings_.now() + ahead && !job.storing) {
      due.push_back(request);
    }
  }
  std::sort(due.begin(), due.end(), [this](int a, int b) {
    return std::pair(at(a).reservation->verify, a) < std::pair(at(b).reservation->verify, b);
  });
  for (const int request : due) {
    Job& job = at(request);
    const bool early = job.reservation->begin > rings_.now();
    const bool fits = in_use() + job.reservation->bytes <= options_.room;
    if (early && (queued > 0.0 || !fits || !rings_.HoldFromNow(*job.reservation, RingRoom()))) {
      continue;
    }
    if (!fits) {
      break;  // others are late, or in lockstep; it starts when they have verified
    }
    // Where the link is behind, those started now would only wait for it and hold memory.
    const double iterations = ReloadIterations(job);
    if (options_.policy != Policy::kLockstep && queued - longest >= 1.0) {
      break;
    }
    queued += iterations;
    longest = std::max(longest, iterations);
    transient_ += job.reservation->bytes;
    job.reload = Reload::kStarted;
    ++counts_.reloads;
    plan_.reload.push_back(request);
  }
}

// In lockstep all verify once all full caches are there, or once as many are as memory holds.
bool Scheduler::LockstepDue() const {
  bool due = true;
  for (const auto& [request, job] : active_) {
    if (job.phase == Phase::kRound) {
      const bool coming = options_.reloads &&
                          (job.reload == Reload::kStarted ||
                           (job.reload == Reload::kNone && job.reservation->begin > rings_.now()));
      due = due && job.complete() && !coming;
    }
  }
  return due;
}

// Whoever's full cache comes late drafts on as far as the memory reserved for its verify goes:
// an iteration with fewer rows would be shorter than those that the other reloads were planned in.
bool Scheduler::DraftsOn(const Job& job) const {
  return options_.policy != Policy::kLockstep && job.late && !job.draft_ended &&
         job.drafted <
             job.Allowed(std::min(LookAhead(options_.draft_length), job.remaining()) - 1) &&
         FullCache(job).bytes(job.drafted + 2) <= job.reservation->bytes;
}

bool Scheduler::VerifiesNow(Job& job, bool lockstep_due) {
  const bool there = !Reloads(job) || job.reload == Reload::kThere;
  const bool due = Reloads(job) && job.reservation && job.reservation->verify <= rings_.now();
  if (due && !there && !job.late) {
    job.late = true;
    ++counts_.late_reloads;
  }
  return there && (options_.policy == Policy::kLockstep ? lockstep_due : due || job.complete());
}

}  // namespace vericache
