// What an iteration computes: pure logic, no clock, no I/O.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace vericache {

// full: decode on the full cache. lossy: drafts are emitted unverified, a baseline. vericache:
// drafts on the compressed cache are verified on the full one.
enum class Policy { kFull, kLossy, kVeriCache };

std::string_view Name(Policy policy);
// nullopt for an unknown name.
std::optional<Policy> ParsePolicy(std::string_view name);

// What the scheduler knows of a running request.
struct RequestView {
  int prefill_left = 0;      // prompt tokens not yet in the full cache
  int drafted = 0;           // tokens drafted in this round
  bool draft_ended = false;  // the last drafted token ends the text
  int remaining = 0;         // tokens that may still be emitted
};

// Rows of one request in an iteration.
struct RowGroup {
  enum class Kind { kPrefill, kDecode, kDraft, kVerify };

  int request = 0;  // index into the views
  Kind kind = Kind::kDecode;
  int rows = 0;
};

// How many tokens a round should draft: the draft length, but no more than could be emitted besides
// the token that the verify itself adds.
int DraftTarget(int draft_length, int remaining);

// The rows of the next iteration: one for each drafting or decoding request, drafted + 1 for each
// request whose draft is complete, and at most one chunk of prefill, of the first request that
// still has some. Requests without rows wait.
std::vector<RowGroup> PlanIteration(Policy policy, std::span<const RequestView> requests,
                                    int draft_length, int prefill_chunk);

}  // namespace vericache
