// Which requests run, when each full cache crosses the link, and what the next iteration computes:
// pure logic, no clock, no I/O. The engine and the simulator run this same code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/types.h"
#include "scheduler/draft_length.h"
#include "scheduler/iteration_costs.h"
#include "scheduler/policy.h"
#include "scheduler/rings.h"

namespace vericache {

struct SchedulerOptions {
  Policy policy = Policy::kVeriCache;
  int draft_length = 16;    // wished; the longest where `adaptive`
  bool adaptive = false;    // each request's own, from what was accepted of it
  int batch = 1;            // requests in flight, at most
  int prefill_chunk = 512;  // rows of prompts in an iteration, at most
  Bytes room;               // fast memory for pages
  Bytes memory;             // of the machine, fast memory included
  bool reloads = false;     // a full cache crosses the link before each of its verifies, and
                            // after its prefill; under `full`, where not all fit, they take turns
                            // in fast memory. Otherwise it is read where it lies
  Bytes group;              // of a full cache: `group_slots` slots in all layers
  int group_slots = 64;
  double link_bandwidth = 1e9;  // bytes/s, the first guess
  double iteration_s = 0.02;    // the first guess
  int turn = 64;  // tokens that a full cache stays in fast memory, at least, where they take turns
};

// How many iterations ahead reloads are planned; a round's draft may be as long as this - 1. Four
// rounds, so that requests that all began together find places around their wish.
int LookAhead(int draft_length);

// So many of another request's first tokens a prompt begins with, too.
struct SharedPrompt {
  int request = 0;
  int tokens = 0;
};

// What a request needs, at most.
struct RequestNeed {
  int prompt_tokens = 0;
  int max_tokens = 1;               // to emit
  Bytes resident;                   // of fast memory for as long as it runs
  Bytes memory;                     // of the machine's memory, fast or not, likewise
  std::optional<int> draft_length;  // of its rounds, at most; 0: nothing is drafted
  // It begins once the other one has computed these, or is over; those behind it pass meanwhile.
  std::optional<SharedPrompt> shared;
};

// Rows of one request in an iteration.
struct RowGroup {
  enum class Kind { kPrefill, kDecode, kDraft, kVerify };

  int request = 0;
  Kind kind = Kind::kDecode;
  int rows = 0;
};

// Under `full`: a full cache that leaves fast memory for the store now.
struct SwapOut {
  int request = 0;
  bool at_once = false;  // little of it is not in the store yet; otherwise Stored says when it left

  bool operator==(const SwapOut&) const = default;
};

struct IterationPlan {
  std::vector<int> admit;   // requests that begin
  std::vector<int> reload;  // full caches whose copy to fast memory starts now
  std::vector<SwapOut> swap_out;
  std::vector<RowGroup> rows;

  void Clear() {
    admit.clear();
    reload.clear();
    swap_out.clear();
    rows.clear();
  }
};

// What it did so far.
struct SchedulerCounts {
  std::int64_t reloads = 0;
  std::int64_t late_reloads = 0;  // not there when their verify was due
  std::int64_t rounds = 0;
};

// How many requests are where.
struct RequestStates {
  int waiting = 0;     // not begun
  int prefilling = 0;  // their prompts are computed, or brought from what is kept
  int decoding = 0;    // drafting, verifying, or decoding on the full cache
  int away = 0;        // nothing to compute until their full cache has come over the link
  int leaving = 0;     // over, and the link has not yet let go of them

  bool operator==(const RequestStates&) const = default;
};

// Follows what is measured; the first measurement replaces the guess.
class RunningEstimate {
 public:
  explicit RunningEstimate(double guess) : value_(guess) {}
  void Observe(double measured);
  double value() const { return value_; }
  // Whether anything was measured.
  bool known() const { return count_ > 0; }

 private:
  double value_;
  int count_ = 0;
};

// In each iteration: Plan; do what it says; report it by Prefilled, Decoded, Drafted, Verified;
// EndIteration. Reloaded and Stored are reported whenever they happen, Finish when a request ends.
// Requests are named by the caller; ascending names are served in that order.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // The fast memory that a request needs to run alone: what `room` must at least be.
  Bytes NeededRoom(const RequestNeed& need) const;

  // Queues a request. Its NeededRoom must be within `room`, its memory within `memory`.
  void Submit(int request, const RequestNeed& need);

  // The next iteration. Without rows where every request waits for the link, or for its place
  // (then EndIteration brings it nearer), or where none is left.
  const IterationPlan& Plan();

  // The begun request has no rows, nor any in the plan just made, until Prefilled says how much of
  // its prompt was brought instead of computed, which may be none.
  void Loading(int request);
  // `rows` of the prompt were computed; with the last of them the first token was emitted.
  void Prefilled(int request, int rows);
  // The full cache of a prefilled request has left fast memory for the store: after its prefill, or
  // under `full` after a swap that does not leave at once.
  void Stored(int request);
  // One more token was emitted, without a round.
  void Decoded(int request);
  // One more token was drafted. `ends` where nothing can follow it; `doubtful` where its verify may
  // well give another one: then an adaptive round ends with it, if its verify can come earlier.
  void Drafted(int request, bool ends, bool doubtful = false);
  // A round ended: `accepted` of its drafted tokens, and accepted + 1 emitted.
  void Verified(int request, int accepted);
  // The full cache has come: `bytes` in `seconds` of the link's time.
  void Reloaded(int request, Bytes bytes, double seconds);
  // The request is over, begun or not: no more rows. What it holds of fast memory stays counted
  // until Finish.
  void Leave(int request);
  // The request is over, and nothing of it is in fast memory any more.
  void Finish(int request);
  // The planned iteration took `seconds`; nullopt where it had no rows.
  void EndIteration(std::optional<double> seconds);

  // The number of the iteration that is planned next, or was just planned; and of the one that
  // needs a full cache whose reload was planned: its due date on the link.
  std::int64_t now() const { return rings_.now(); }
  std::int64_t DueOf(int request) const {
    const Job& job = active_.at(request);
    return job.reservation ? job.reservation->verify : now();
  }

  // Requests queued and in flight.
  int waiting() const { return static_cast<int>(waiting_.size()); }
  int active() const { return static_cast<int>(active_.size()); }
  // Whether the full cache of a begun request is in fast memory for as long as it runs: then it is
  // neither stored nor reloaded.
  bool Stays(int request) const { return active_.at(request).stays; }
  const SchedulerCounts& counts() const { return counts_; }
  RequestStates states() const;
  // Fast memory that is given out now; at most `room`.
  Bytes in_use() const { return resident_ + transient_ + prefill_ - Claimed(); }
  // Of an iteration without prefill, and of the link, as measured lately.
  double iteration_s() const { return iteration_s_.value(); }
  double link_bandwidth() const { return bandwidth_.value(); }

 private:
  // kParked: begins a round next, or has no turn in fast memory.
  enum class Phase { kLoading, kPrefill, kDecode, kSwapOut, kParked, kSwapIn, kRound, kLeaving };
  enum class Reload { kNone, kStarted, kThere };

  struct Job {
    RequestNeed need;
    Phase phase = Phase::kPrefill;
    int prefilled = 0;
    int emitted = 0;
    int drafted = 0;
    bool draft_ended = false;
    bool doubtful = false;  // the last token drafted
    int target = 0;         // tokens to draft in this round
    std::optional<Reservation> reservation;
    Reload reload = Reload::kNone;
    bool late = false;
    bool stays = false;  // its full cache is in fast memory, part of need.resident
    // Its prefill holds, or claims, fast memory for its full cache, which has not left yet.
    bool storing = false;
    Bytes prefill;          // that cache
    bool advanced = false;  // an earlier place was sought once the draft was complete
    // Under `full`, where full caches take turns.
    bool resident = true;     // counted in resident_
    bool stored = false;      // left fast memory before
    int turn = 0;             // tokens since it came
    std::int64_t parked = 0;  // the iteration in which it left
    AcceptanceEstimate acceptance;

    bool complete() const { return draft_ended || drafted >= target; }
    int remaining() const { return need.max_tokens - emitted; }
    // `drafts`, or as many as the request allows.
    int Allowed(int drafts) const {
      return need.draft_length ? std::min(drafts, *need.draft_length) : drafts;
    }
  };
  struct Waiting {
    int request;
    RequestNeed need;
    std::int64_t since;
  };

  // Of resident_ and prefill_: what nobody has yet.
  Bytes Claimed() const {
    return claiming_ ? active_.at(*claiming_).need.resident + active_.at(*claiming_).prefill
                     : Bytes{};
  }
  FullCacheSize FullCache(const Job& job) const;
  void PlanIterationTime();
  double ReloadIterations(const Job& job) const;
  bool Reloads(const Job& job) const { return options_.reloads && !job.stays; }
  int WishedDraft(const Job& job) const;
  int AutoDraft(const Job& job);
  int LongestRound() const { return LookAhead(options_.draft_length) - 1; }
  static int Target(const Job& job, int drafts);
  void BeginRound(Job& job, int drafts);
  Bytes RingRoom() const;
  bool Reserve(Job& job, int drafts);
  void SeekEarlier();
  void SeekAnew();
  void BeginRounds();
  void BeginLockstep();
  void StartReloads();
  bool Swaps() const { return options_.policy == Policy::kFull && options_.reloads; }
  Bytes Staying(const RequestNeed& need) const { return NeededRoom(need) - need.resident; }
  bool AllStay() const;
  bool WaitsForShared(const Waiting& waiting) const;
  std::deque<Waiting>::const_iterator NextWaiting() const;
  bool NewIsNext() const;
  void SwapIn();
  bool MakeRoom(Bytes room, Bytes memory);
  void Park(Job& job, int request);
  bool HasRoom(const Job& job) const;
  bool HasRoomNow(Bytes room) const;
  void AdmitNew();
  void BeginClaimed();
  bool VerifiesNow(Job& job, bool lockstep_due);
  bool LockstepDue() const;
  bool DraftsOn(const Job& job) const;
  void PlanPrefills();
  void PlanRows();
  Job& at(int request) { return active_.at(request); }

  SchedulerOptions options_;
  ReloadRings rings_;
  std::deque<Waiting> waiting_;
  std::map<int, Job> active_;
  std::deque<int> parked_;       // without a place, or a turn; the longest waiting first
  int storing_ = 0;              // requests that are
  std::optional<int> claiming_;  // the one of them that does not have its memory yet
  Bytes prefill_;                // the full caches of all of them
  Bytes resident_;
  Bytes transient_;  // of reloads that were started
  Bytes memory_;
  RunningEstimate iteration_s_;
  RunningEstimate draft_iteration_s_;  // of those without a verify
  int since_draft_iteration_ = 0;      // iterations since the last of these
  double planned_iteration_s_ = 0.0;   // that reloads are planned with
  RunningEstimate verify_iteration_s_;
  RunningEstimate bandwidth_;
  IterationCosts costs_;
  int rounds_without_drafts_ = 0;  // since the last one with
  struct Prefill {
    int left;  // rows of the prompt
    int request;
    int rows;  // in this iteration

    auto operator<=>(const Prefill&) const = default;
  };
  std::vector<Prefill> prefills_;  // of the plan, by request
  IterationPlan plan_;
  SchedulerCounts counts_;
};

}  // namespace vericache
