// A virtual machine for the scheduler: it executes plans on a virtual clock, with a serial link and
// drafts that are accepted by chance, and throws where a plan breaks a rule.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "perfmodel/virtual_link.h"
#include "scheduler/scheduler.h"

namespace vericache::testing {

struct World {
  SchedulerOptions scheduler;
  double bandwidth = 1e9;       // of the link, bytes/s to fast memory
  double save_bandwidth = 1e9;  // and to the store
  double iteration_s = 0.02;    // an iteration takes this long…
  double verify_s = 0.0;        // …and this much longer for each verify in it…
  double prefill_s = 0.0;       // …and for a chunk of prefill
  bool steady = false;          // an iteration without rows takes as long as others; otherwise it
                                // ends with the next news of the link, as in the engine
  double acceptance = 0.8;      // the chance that a drafted token is accepted
  double end = 0.0;             // the chance that a token is the last one of its text
  double doubt = 0.0;           // the chance that a drafted token is doubtful
  double load = 0.0;            // the chance that a part of the prompt is brought, not computed
  double abort = 0.0;           // the chance, at each iteration, that a request fails
  double withdraw = 0.0;        // the chance, at each iteration, that one leaves the queue
  std::uint32_t seed = 1;
};

class Driver {
 public:
  // What an iteration did.
  struct Iteration {
    double start = 0.0;
    bool rows = false;
    bool load = false;  // one began
    bool prefill = false;
    int verifies = 0;
    Bytes in_use;           // what the scheduler gave out
    int full_caches = 0;    // in fast memory
    int running = 0;        // requests
    int swaps = 0;          // out of fast memory
    std::int64_t late = 0;  // reloads, so far
  };

  Driver(const World& world, const std::vector<RequestNeed>& needs);

  // False once every request has ended.
  bool Step();
  // To the end.
  void Run();

  double now() const { return now_; }
  // By all, and by one of them.
  std::int64_t emitted() const { return emitted_; }
  int emitted(int request) const { return requests_.at(static_cast<std::size_t>(request)).emitted; }
  // Requests that ended with all the tokens that were asked for.
  int whole() const;
  const std::vector<Iteration>& history() const { return history_; }
  const Scheduler& scheduler() const { return scheduler_; }
  // Reloads that began while the link was busy with others.
  int queued_reloads() const { return queued_reloads_; }
  // Of this machine's own time, in Plan.
  double planning_s() const { return planning_.count(); }

 private:
  enum class Reload { kNone, kMoving, kThere };

  struct Request {
    RequestNeed need;
    bool begun = false;
    bool ended = false;  // and gone once nothing of it moves any more
    bool gone = false;
    bool waited = false;   // for what it shares, once
    bool loading = false;  // a part of the prompt comes over the link
    int copies = 0;        // that are under way
    int prefilled = 0;
    int emitted = 0;
    int drafted = 0;
    bool draft_ended = false;
    bool stays = false;   // the full cache is in fast memory for as long as it runs
    bool stored = false;  // the full cache is in the store
    bool away = false;    // under full: not in fast memory, or on its way
    bool saving = false;  // and on its way out, still there
    Reload reload = Reload::kNone;
    int slots = 0;  // of the full cache, in fast memory

    bool running() const { return begun && !ended; }
    bool prefilling() const { return prefilled < need.prompt_tokens; }
    // The verify adds a token of its own.
    bool draft_complete() const { return draft_ended || drafted + 1 >= need.max_tokens - emitted; }
    int full_slots() const { return prefilled + emitted - 1; }
  };

  const SchedulerOptions& options() const { return world_.scheduler; }
  Policy policy() const { return world_.scheduler.policy; }
  // Whether a full cache is in fast memory only for its prefill and its verifies.
  bool transient() const { return options().reloads && policy() != Policy::kFull; }
  bool transient(const Request& request) const { return transient() && !request.stays; }
  // Whether full caches take turns in fast memory.
  bool swaps() const { return options().reloads && policy() == Policy::kFull; }
  // Whether its part of fast memory is taken.
  static bool HoldsResident(const Request& request) {
    return !request.away || request.saving || request.reload == Reload::kMoving;
  }
  // Whether what it shares with another one's prompt is not there yet.
  bool WaitsForShared(const Request& request) const;
  void NoteWhoWaits();
  void CheckOrder(int index) const;
  Request& at(int request) { return requests_.at(static_cast<std::size_t>(request)); }
  Bytes Groups(int slots) const;
  bool Chance(double p);
  // Throws where a rule is broken.
  static void Require(bool condition, const char* rule);

  void Copy(VirtualLink& link, int index, int slots, double bandwidth, std::int64_t due);
  void EndTransfers();
  void AfterSave(int index);
  void AfterCopyToFastMemory(const VirtualLink::Transfer& transfer);
  void WaitForLink();
  void AbortSome();
  void Begin(int index);
  void StartReload(int index);
  void MoveOut(const SwapOut& out);
  void CheckRows(const RowGroup& group);
  void CheckPrefills(const std::vector<RowGroup>& rows) const;
  void CheckDraft(const Request& request) const;
  void CheckWaiting(const std::vector<bool>& has_rows) const;
  void CheckMemory();
  void Execute(const RowGroup& group);
  void AfterPrefill(int index);
  void Verify(int index);
  void Emit(int index, int tokens);
  void End(int index);
  void Finish(int index);

  World world_;
  Scheduler scheduler_;
  std::mt19937 random_;
  std::vector<Request> requests_;
  VirtualLink to_fast_memory_;
  VirtualLink to_store_;
  double now_ = 0.0;
  bool computed_ = false;  // a prompt, once
  int in_flight_ = 0;
  int gone_ = 0;
  int idle_ = 0;
  int queued_reloads_ = 0;
  std::int64_t emitted_ = 0;
  std::chrono::duration<double> planning_{};
  std::vector<Iteration> history_;
};

}  // namespace vericache::testing
