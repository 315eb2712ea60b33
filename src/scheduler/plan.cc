#include "scheduler/plan.h"

#include <algorithm>
#include <array>
#include <utility>

namespace vericache {
namespace {

constexpr std::array<std::pair<Policy, std::string_view>, 3> kNames = {
    {{Policy::kFull, "full"}, {Policy::kLossy, "lossy"}, {Policy::kVeriCache, "vericache"}}};

}  // namespace

std::string_view Name(Policy policy) {
  for (const auto& [each, name] : kNames) {
    if (each == policy) {
      return name;
    }
  }
  return "?";
}

std::optional<Policy> ParsePolicy(std::string_view name) {
  for (const auto& [policy, each] : kNames) {
    if (each == name) {
      return policy;
    }
  }
  return std::nullopt;
}

int DraftTarget(int draft_length, int remaining) {
  return std::max(0, std::min(draft_length, remaining - 1));
}

std::vector<RowGroup> PlanIteration(Policy policy, std::span<const RequestView> requests,
                                    int draft_length, int prefill_chunk) {
  std::vector<RowGroup> plan;
  bool prefilling = false;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RequestView& request = requests[i];
    RowGroup group{.request = static_cast<int>(i), .kind = RowGroup::Kind::kDecode, .rows = 1};
    if (request.prefill_left > 0) {
      if (prefilling) {
        continue;
      }
      prefilling = true;
      group.kind = RowGroup::Kind::kPrefill;
      group.rows = std::min(prefill_chunk, request.prefill_left);
    } else if (policy == Policy::kLossy) {
      group.kind = RowGroup::Kind::kDraft;
    } else if (policy == Policy::kVeriCache) {
      const bool complete =
          request.draft_ended || request.drafted >= DraftTarget(draft_length, request.remaining);
      group.kind = complete ? RowGroup::Kind::kVerify : RowGroup::Kind::kDraft;
      group.rows = complete ? request.drafted + 1 : 1;
    }
    plan.push_back(group);
  }
  return plan;
}

}  // namespace vericache
