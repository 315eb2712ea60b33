// The rules that every plan keeps.
#include <algorithm>
#include <vector>

#include "scheduler/driver.h"

namespace vericache::testing {

void Driver::CheckRows(const RowGroup& group) {
  Request& request = at(group.request);
  Require(request.running() && !request.loading, "rows are of running requests");
  Require(!request.away, "rows are of caches in fast memory");
  Require((group.kind == RowGroup::Kind::kPrefill) == request.prefilling(), "prefill comes first");
  Iteration& iteration = history_.back();
  iteration.rows = true;
  switch (group.kind) {
    case RowGroup::Kind::kPrefill:
      Require(group.rows > 0 && group.rows <= request.need.prompt_tokens - request.prefilled,
              "a chunk is of the prompt");
      iteration.prefill = true;
      request.slots = request.prefilled + group.rows;
      return;
    case RowGroup::Kind::kDecode:
      Require(policy() == Policy::kFull && group.rows == 1, "only the full policy decodes");
      return;
    case RowGroup::Kind::kDraft:
      Require(policy() != Policy::kFull && group.rows == 1, "a draft is one row");
      if (Verifies(policy())) {
        CheckDraft(request);
      }
      return;
    case RowGroup::Kind::kVerify:
      ++iteration.verifies;
      Require(Verifies(policy()), "only a policy that verifies does");
      Require(group.rows == request.drafted + 1, "a verify has all drafts and one row more");
      Require(!transient(request) || request.reload == Reload::kThere,
              "a verify has its full cache");
      request.slots = request.full_slots() + group.rows;
      return;
  }
}

// Prompts share the rows of a chunk: the first has half of them, and the others theirs in the order
// of what they have left.
void Driver::CheckPrefills(const std::vector<RowGroup>& rows) const {
  std::vector<int> given(requests_.size());
  int all = 0;
  for (const RowGroup& group : rows) {
    if (group.kind == RowGroup::Kind::kPrefill) {
      given[static_cast<std::size_t>(group.request)] = group.rows;
      all += group.rows;
    }
  }
  Require(all <= options().prefill_chunk, "prompts have the rows of one chunk");
  if (history_.back().load) {
    return;  // it had rows in the plan that began it
  }
  bool first = true;
  int wanted = 0;
  int served = 0;       // of who has rows, the most that are left
  int unserved = 1000;  // of who has not all that it could, the fewest; but for the first
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    if (!request.running() || request.loading || !request.prefilling()) {
      continue;
    }
    const int left = request.need.prompt_tokens - request.prefilled;
    wanted += left;
    if (first) {
      Require(2 * given[i] >= std::min(2 * left, options().prefill_chunk),
              "the first prompt has half of the rows");
    } else {
      served = given[i] > 0 ? std::max(served, left) : served;
      unserved = given[i] < left ? std::min(unserved, left) : unserved;
    }
    first = false;
  }
  Require(all == std::min(wanted, options().prefill_chunk), "no rows are left to nobody");
  Require(served <= unserved, "a prompt passes no shorter one");
}

void Driver::CheckDraft(const Request& request) const {
  Require(!request.draft_complete(), "a draft stops at its end, and a token before what remains");
  Require(request.drafted < request.need.draft_length.value_or(request.drafted + 1),
          "a request that allows fewer drafts has no more");
  const bool placed = transient(request) && policy() != Policy::kLockstep;
  Require(
      request.drafted < (placed ? LookAhead(options().draft_length) - 1 : options().draft_length),
      "no draft is longer than it may be");
}

// Who has no rows waits for the link, for a place, or for others.
void Driver::CheckWaiting(const std::vector<bool>& has_rows) const {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    if (!request.running() || has_rows[i]) {
      continue;
    }
    if (request.loading || request.away) {
      continue;
    }
    if (request.prefilling()) {
      Require(history_.back().prefill || history_.back().load,
              "a prefill waits for another one only");
      continue;
    }
    Require(Verifies(policy()), "who needs no verify runs in every iteration");
    Require(
        policy() == Policy::kLockstep || (transient(request) && request.reload != Reload::kThere),
        "a verify waits for its full cache only");
  }
}

// What is really in fast memory is within what the scheduler gave out, and that is within the room.
void Driver::CheckMemory() {
  Bytes held;
  Iteration& iteration = history_.back();
  for (const Request& each : requests_) {
    iteration.running += each.running() ? 1 : 0;
    if (each.begun && !each.gone) {
      held += HoldsResident(each) ? each.need.resident : Bytes{};
      held += transient() ? Groups(each.stays ? each.full_slots() : each.slots) : Bytes{};
      iteration.full_caches += each.slots > 0 ? 1 : 0;
    }
  }
  Require(held <= scheduler_.in_use(), "what is held was given out");
  Require(scheduler_.in_use() <= options().room, "fast memory holds what is given out");
  iteration.in_use = scheduler_.in_use();
  iteration.late = scheduler_.counts().late_reloads;
}

}  // namespace vericache::testing
