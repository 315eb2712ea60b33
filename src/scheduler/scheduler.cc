#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace vericache {
namespace {

// The least weight of a new measurement in a running estimate.
constexpr double kNewest = 0.1;

}  // namespace

void RunningEstimate::Observe(double measured) {
  ++count_;
  value_ += std::max(kNewest, 1.0 / count_) * (measured - value_);
}

int LookAhead(int draft_length) { return 4 * (draft_length + 1); }

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      rings_(LookAhead(options.draft_length)),
      iteration_s_(options.iteration_s),
      draft_iteration_s_(options.iteration_s),
      verify_iteration_s_(options.iteration_s),
      bandwidth_(options.link_bandwidth) {}

FullCacheSize Scheduler::FullCache(const Job& job) const {
  return {.group = options_.group,
          .group_slots = options_.group_slots,
          .slots = std::max(job.prefilled + job.emitted - 1, 0),
          .limit = job.need.prompt_tokens + job.need.max_tokens};
}

double Scheduler::ReloadIterations(const Job& job) const {
  return static_cast<double>(FullCache(job).bytes().count) /
         (bandwidth_.value() * planned_iteration_s_);
}

// Iterations that verify are longer than others. Where the link has time to spare, reloads are
// planned as if none verified, and are not late; else the link's time is counted as it is.
void Scheduler::PlanIterationTime() {
  constexpr double kSpare = 0.8;
  constexpr int kOld = 64;
  planned_iteration_s_ = iteration_s_.value();
  // Rounds that adapt take all of the link that there is.
  if (options_.adaptive || !draft_iteration_s_.known() || since_draft_iteration_ > kOld ||
      draft_iteration_s_.value() >= planned_iteration_s_) {
    return;
  }
  // What all reloads take of a round, were its iterations as short as that.
  const double mean = std::exchange(planned_iteration_s_, draft_iteration_s_.value());
  double reloads = 0.0;
  for (const auto& [request, job] : active_) {
    reloads += Reloads(job) ? ReloadIterations(job) : 0.0;
  }
  if (reloads > kSpare * (options_.draft_length + 1)) {
    planned_iteration_s_ = mean;
  }
}

Bytes Scheduler::NeededRoom(const RequestNeed& need) const {
  if (!options_.reloads || options_.policy == Policy::kFull) {
    return need.resident;
  }
  const Job whole{.need = need, .prefilled = need.prompt_tokens};
  // Without verifies the full cache is in fast memory for the prefill alone.
  const int more = Verifies(options_.policy) ? need.max_tokens + 1 : 1;
  return need.resident + FullCache(whole).bytes(more);
}

void Scheduler::Submit(int request, const RequestNeed& need) {
  Check(NeededRoom(need) <= options_.room && need.memory <= options_.memory,
        "a request that can never run is not queued");
  waiting_.push_back({request, need, now()});
}

const IterationPlan& Scheduler::Plan() {
  plan_.Clear();
  PlanIterationTime();
  if (Swaps()) {
    SwapIn();
  } else if (options_.policy == Policy::kLockstep) {
    BeginLockstep();
  } else {
    SeekEarlier();
    SeekAnew();
    BeginRounds();
  }
  AdmitNew();
  StartReloads();
  PlanRows();
  return plan_;
}

// The prompt that began first has half of the rows at least, and otherwise those with the fewest
// rows left have theirs first: short prompts pass long ones, and none waits for ever.
void Scheduler::PlanPrefills() {
  prefills_.clear();
  for (const auto& [request, job] : active_) {
    if (job.phase == Phase::kPrefill && claiming_ != request) {
      prefills_.push_back(
          {.left = job.need.prompt_tokens - job.prefilled, .request = request, .rows = 0});
    }
  }
  if (prefills_.empty()) {
    return;
  }
  const int oldest = prefills_.front().request;
  int kept = std::min(prefills_.front().left, (options_.prefill_chunk + 1) / 2);
  int others = options_.prefill_chunk - kept;
  std::ranges::sort(prefills_);
  for (Prefill& each : prefills_) {
    others += each.request == oldest ? std::exchange(kept, 0) : 0;
    each.rows = std::min(each.left, others);
    others -= each.rows;
  }
  std::ranges::sort(prefills_, {}, &Prefill::request);
}

void Scheduler::PlanRows() {
  const bool lockstep_due = options_.policy == Policy::kLockstep && LockstepDue();
  PlanPrefills();
  auto prefill = prefills_.begin();
  for (auto& [request, job] : active_) {
    RowGroup group{.request = request, .kind = RowGroup::Kind::kDecode, .rows = 1};
    switch (job.phase) {
      case Phase::kPrefill:
        if (claiming_ == request) {
          continue;
        }
        group.kind = RowGroup::Kind::kPrefill;
        group.rows = (prefill++)->rows;
        if (group.rows == 0) {
          continue;
        }
        break;
      case Phase::kDecode:
        group.kind =
            options_.policy == Policy::kFull ? RowGroup::Kind::kDecode : RowGroup::Kind::kDraft;
        break;
      case Phase::kLoading:
      case Phase::kSwapOut:
      case Phase::kParked:
      case Phase::kSwapIn:
      case Phase::kLeaving:
        continue;
      case Phase::kRound:
        if (VerifiesNow(job, lockstep_due)) {
          group.kind = RowGroup::Kind::kVerify;
          group.rows = job.drafted + 1;
        } else if (!job.complete() || DraftsOn(job)) {
          job.target = std::max(job.target, job.drafted + 1);
          group.kind = RowGroup::Kind::kDraft;
        } else {
          continue;
        }
        break;
    }
    plan_.rows.push_back(group);
  }
}

void Scheduler::Loading(int request) {
  at(request).phase = Phase::kLoading;
  // The plan that begins it may have its first rows.
  std::erase_if(plan_.rows, [request](const RowGroup& group) { return group.request == request; });
}

void Scheduler::Prefilled(int request, int rows) {
  Job& job = at(request);
  job.phase = Phase::kPrefill;
  job.prefilled += rows;
  if (job.prefilled < job.need.prompt_tokens) {
    return;
  }
  job.emitted = 1;
  if (Verifies(options_.policy)) {
    job.phase = Phase::kParked;
    parked_.push_back(request);
  } else {
    job.phase = Phase::kDecode;
  }
}

void Scheduler::Stored(int request) {
  if (Swaps()) {
    Park(at(request), request);
    return;
  }
  Job& job = at(request);
  Check(job.storing, "only a prefill's full cache leaves");
  if (claiming_ == request) {
    claiming_.reset();
  }
  job.storing = false;
  --storing_;
  prefill_ -= std::exchange(job.prefill, {});
}

void Scheduler::Decoded(int request) {
  Job& job = at(request);
  ++job.emitted;
  ++job.turn;
}

void Scheduler::Drafted(int request, bool ends, bool doubtful) {
  Job& job = at(request);
  ++job.drafted;
  job.doubtful = doubtful && options_.adaptive;
  // Where nothing is reloaded the verify can come at once.
  job.draft_ended = ends || (job.doubtful && !Reloads(job));
}

void Scheduler::Verified(int request, int accepted) {
  Job& job = at(request);
  ++counts_.rounds;
  job.acceptance.Observe(job.drafted, accepted);
  job.emitted += accepted + 1;
  if (job.reservation) {
    if (options_.policy != Policy::kLockstep) {
      rings_.Release(*job.reservation);
    }
    transient_ -= job.reservation->bytes;
    job.reservation.reset();
  }
  job.phase = Phase::kParked;
  parked_.push_back(request);
}

void Scheduler::Reloaded(int request, Bytes bytes, double seconds) {
  Job& job = at(request);
  job.reload = Reload::kThere;
  if (job.phase == Phase::kSwapIn) {
    job.phase = Phase::kDecode;
  }
  if (seconds > 0.0 && bytes.count > 0) {
    bandwidth_.Observe(static_cast<double>(bytes.count) / seconds);
  }
}

RequestStates Scheduler::states() const {
  RequestStates states{.waiting = waiting()};
  for (const auto& [request, job] : active_) {
    switch (job.phase) {
      case Phase::kLoading:
      case Phase::kPrefill:
        ++states.prefilling;
        break;
      case Phase::kDecode:
        ++states.decoding;
        break;
      case Phase::kRound:
        ++(job.complete() && Reloads(job) && job.reload != Reload::kThere ? states.away
                                                                          : states.decoding);
        break;
      case Phase::kParked:
        ++(Swaps() ? states.away : states.decoding);
        break;
      case Phase::kSwapOut:
      case Phase::kSwapIn:
        ++states.away;
        break;
      case Phase::kLeaving:
        ++states.leaving;
        break;
    }
  }
  return states;
}

void Scheduler::Leave(int request) {
  if (const auto job = active_.find(request); job != active_.end()) {
    job->second.phase = Phase::kLeaving;
    std::erase(parked_, request);
    return;
  }
  std::erase_if(waiting_, [request](const Waiting& each) { return each.request == request; });
}

void Scheduler::Finish(int request) {
  if (!active_.contains(request)) {
    Leave(request);  // it never began
    return;
  }
  Job& job = at(request);
  if (job.reservation) {
    if (options_.policy != Policy::kLockstep) {
      rings_.Release(*job.reservation);
    }
    if (job.reload != Reload::kNone) {
      transient_ -= job.reservation->bytes;
    }
  }
  if (job.storing) {
    Stored(request);
  }
  std::erase(parked_, request);
  if (job.resident) {
    resident_ -= job.need.resident;
    memory_ -= job.need.memory;
  } else {
    memory_ -= job.need.memory - job.need.resident;
  }
  active_.erase(request);
}

void Scheduler::EndIteration(std::optional<double> seconds) {
  int drafts = 0;
  int verifies = 0;
  int verified_rows = 0;
  bool prefills = false;
  for (const RowGroup& group : plan_.rows) {
    const bool verify = group.kind == RowGroup::Kind::kVerify;
    drafts += group.kind == RowGroup::Kind::kDraft ? 1 : 0;
    verifies += verify ? 1 : 0;
    verified_rows += verify ? group.rows : 0;
    prefills = prefills || group.kind == RowGroup::Kind::kPrefill;
  }
  // Iterations that prefill take longer, so that reloads planned without them come early.
  if (seconds && !prefills) {
    costs_.Observe(drafts, verifies, verified_rows, *seconds);
    (verifies > 0 ? verify_iteration_s_ : draft_iteration_s_).Observe(*seconds);
    since_draft_iteration_ = verifies > 0 ? since_draft_iteration_ + 1 : 0;
    iteration_s_.Observe(*seconds);
  }
  rings_.Advance();
}

}  // namespace vericache
