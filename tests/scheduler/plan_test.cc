#include "scheduler/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace vericache {
namespace {

using Kind = RowGroup::Kind;

constexpr Policy kPolicies[] = {Policy::kFull, Policy::kLossy, Policy::kVeriCache};

std::vector<RequestView> AnyRequests() {
  const auto count = *rc::gen::inRange(0, 12);
  std::vector<RequestView> requests;
  for (int i = 0; i < count; ++i) {
    RequestView request;
    request.remaining = *rc::gen::inRange(1, 40);
    request.prefill_left = *rc::gen::oneOf(rc::gen::just(0), rc::gen::inRange(0, 2000));
    if (request.prefill_left == 0) {
      request.drafted = *rc::gen::inRange(0, 12);
      request.draft_ended = request.drafted > 0 && *rc::gen::arbitrary<bool>();
    }
    requests.push_back(request);
  }
  return requests;
}

TEST(PolicyName, IsReadBack) {
  for (const Policy policy : kPolicies) {
    EXPECT_EQ(ParsePolicy(Name(policy)), policy);
  }
  EXPECT_EQ(Name(Policy::kFull), "full");
  EXPECT_EQ(Name(Policy::kLossy), "lossy");
  EXPECT_EQ(Name(Policy::kVeriCache), "vericache");
}

TEST(PolicyName, UnknownIsNotAPolicy) {
  EXPECT_EQ(ParsePolicy(""), std::nullopt);
  EXPECT_EQ(ParsePolicy("Full"), std::nullopt);
  EXPECT_EQ(ParsePolicy("vericache "), std::nullopt);
}

RC_GTEST_PROP(DraftTarget, NeverLetsARoundEmitMoreThanRemains, ()) {
  const auto length = *rc::gen::inRange(0, 100);
  const auto remaining = *rc::gen::inRange(1, 100);
  const int target = DraftTarget(length, remaining);
  RC_ASSERT(target >= 0);
  RC_ASSERT(target <= length);
  RC_ASSERT(target + 1 <= remaining);
  RC_ASSERT(target == length || target + 1 == remaining);
}

TEST(DraftTarget, IsZeroWhereNothingRemains) {
  EXPECT_EQ(DraftTarget(8, 0), 0);
  EXPECT_EQ(DraftTarget(8, 1), 0);
}

RC_GTEST_PROP(PlanIteration, PrefillsOneChunkOfTheFirstRequestThatHasSome, ()) {
  const auto policy = *rc::gen::elementOf(std::vector<Policy>(kPolicies, kPolicies + 3));
  const std::vector<RequestView> requests = AnyRequests();
  const auto chunk = *rc::gen::inRange(1, 700);
  const auto plan = PlanIteration(policy, requests, 8, chunk);

  const auto first = std::find_if(requests.begin(), requests.end(), [](const RequestView& request) {
    return request.prefill_left > 0;
  });
  std::vector<RowGroup> prefills;
  std::copy_if(plan.begin(), plan.end(), std::back_inserter(prefills),
               [](const RowGroup& group) { return group.kind == Kind::kPrefill; });
  RC_ASSERT(prefills.size() == (first == requests.end() ? 0U : 1U));
  if (!prefills.empty()) {
    RC_ASSERT(prefills[0].request == static_cast<int>(first - requests.begin()));
    RC_ASSERT(prefills[0].rows == std::min(chunk, first->prefill_left));
  }
}

RC_GTEST_PROP(PlanIteration, GivesEveryDecodableRequestOneGroup, ()) {
  const auto policy = *rc::gen::elementOf(std::vector<Policy>(kPolicies, kPolicies + 3));
  const std::vector<RequestView> requests = AnyRequests();
  const auto plan = PlanIteration(policy, requests, 8, 512);

  std::vector<int> groups(requests.size());
  for (const RowGroup& group : plan) {
    RC_ASSERT(group.request >= 0 && group.request < static_cast<int>(requests.size()));
    RC_ASSERT(group.rows >= 1);
    const auto request = static_cast<std::size_t>(group.request);
    ++groups[request];
    RC_ASSERT((group.kind == Kind::kPrefill) == (requests[request].prefill_left > 0));
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    RC_ASSERT(groups[i] <= 1);
    RC_ASSERT(requests[i].prefill_left > 0 || groups[i] == 1);
  }
}

RC_GTEST_PROP(PlanIteration, FullDecodesAndLossyDraftsOneRow, ()) {
  const std::vector<RequestView> requests = AnyRequests();
  for (const auto& [policy, kind] :
       {std::pair(Policy::kFull, Kind::kDecode), std::pair(Policy::kLossy, Kind::kDraft)}) {
    for (const RowGroup& group : PlanIteration(policy, requests, 8, 512)) {
      RC_ASSERT(group.kind == Kind::kPrefill || (group.kind == kind && group.rows == 1));
    }
  }
}

RC_GTEST_PROP(PlanIteration, VerifiesExactlyTheCompleteDrafts, ()) {
  const std::vector<RequestView> requests = AnyRequests();
  const auto draft_length = *rc::gen::inRange(0, 12);
  for (const RowGroup& group : PlanIteration(Policy::kVeriCache, requests, draft_length, 512)) {
    if (group.kind == Kind::kPrefill) {
      continue;
    }
    const RequestView& request = requests[static_cast<std::size_t>(group.request)];
    const bool complete = request.draft_ended || request.drafted >= draft_length ||
                          request.drafted + 1 >= request.remaining;
    RC_ASSERT(group.kind == (complete ? Kind::kVerify : Kind::kDraft));
    RC_ASSERT(group.rows == (complete ? request.drafted + 1 : 1));
  }
}

// A request driven by its plans alone: every round ends, and none could emit too much.
RC_GTEST_PROP(PlanIteration, RoundsEndWithinTheDraftLengthAndWhatRemains, ()) {
  const auto draft_length = *rc::gen::inRange(0, 12);
  RequestView request{.remaining = *rc::gen::inRange(1, 30)};
  for (int iteration = 0; iteration < 1000 && request.remaining > 0; ++iteration) {
    const auto plan = PlanIteration(Policy::kVeriCache, {&request, 1}, draft_length, 512);
    RC_ASSERT(plan.size() == 1U);
    if (plan[0].kind == Kind::kDraft) {
      ++request.drafted;
      RC_ASSERT(request.drafted <= draft_length);
      continue;
    }
    RC_ASSERT(plan[0].kind == Kind::kVerify);
    RC_ASSERT(plan[0].rows <= request.remaining);
    request.remaining -= *rc::gen::inRange(1, plan[0].rows + 1);
    request.drafted = 0;
  }
  RC_ASSERT(request.remaining == 0);
}

}  // namespace
}  // namespace vericache
