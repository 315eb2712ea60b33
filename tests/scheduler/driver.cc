#include "scheduler/driver.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

namespace vericache::testing {
namespace {

// A copy that ends with an iteration counts as done in it, whatever the rounding.
constexpr double kInstant = 1e-9;

}  // namespace

void Driver::Require(bool condition, const char* rule) {
  if (!condition) {
    throw std::logic_error(std::string("broken rule: ") + rule);
  }
}

Driver::Driver(const World& world, const std::vector<RequestNeed>& needs)
    : world_(world), scheduler_(world.scheduler), random_(world.seed) {
  for (const RequestNeed& need : needs) {
    scheduler_.Submit(static_cast<int>(requests_.size()), need);
    requests_.push_back({.need = need});
  }
}

bool Driver::Step() {
  EndTransfers();
  AbortSome();
  history_.push_back({.start = now_});
  NoteWhoWaits();
  const auto before = std::chrono::steady_clock::now();
  const IterationPlan& plan = scheduler_.Plan();
  planning_ += std::chrono::steady_clock::now() - before;
  for (const SwapOut& out : plan.swap_out) {
    MoveOut(out);
  }
  for (const int request : plan.admit) {
    Begin(request);
  }
  for (const int request : plan.reload) {
    StartReload(request);
  }
  std::vector<bool> has_rows(requests_.size());
  for (const RowGroup& group : plan.rows) {
    std::vector<bool>::reference has = has_rows.at(static_cast<std::size_t>(group.request));
    Require(!has, "a request has rows once");
    has = true;
    CheckRows(group);
  }
  CheckPrefills(plan.rows);
  CheckWaiting(has_rows);
  CheckMemory();
  if (plan.rows.empty()) {
    WaitForLink();
    scheduler_.EndIteration(std::nullopt);
  } else {
    idle_ = 0;
    const double seconds = world_.iteration_s + world_.verify_s * history_.back().verifies +
                           (history_.back().prefill ? world_.prefill_s : 0.0);
    now_ += seconds;
    for (const RowGroup& group : plan.rows) {
      Execute(group);
    }
    scheduler_.EndIteration(seconds);
  }
  return gone_ < static_cast<int>(requests_.size());
}

void Driver::Run() {
  while (Step()) {
    Require(history_.size() < 1'000'000, "all requests end");
  }
  Require(scheduler_.active() == 0 && scheduler_.waiting() == 0, "nobody is left");
  Require(scheduler_.in_use() == Bytes{}, "all memory is given back");
  Require(scheduler_.Plan().rows.empty(), "nothing is left to do");
}

int Driver::whole() const {
  return static_cast<int>(
      std::count_if(requests_.begin(), requests_.end(),
                    [](const Request& each) { return each.emitted == each.need.max_tokens; }));
}

Bytes Driver::Groups(int slots) const {
  return options().group *
         static_cast<std::uint64_t>((slots + options().group_slots - 1) / options().group_slots);
}

bool Driver::Chance(double p) { return p > 0.0 && std::bernoulli_distribution(p)(random_); }

void Driver::Copy(VirtualLink& link, int index, int slots, double bandwidth, std::int64_t due) {
  ++at(index).copies;
  const Bytes bytes = Groups(slots);
  link.Start(index, bytes, static_cast<double>(bytes.count) / bandwidth, due, now_);
}

// Reports what the link has done by now. Who has ended goes when the link has let go of it.
void Driver::EndTransfers() {
  while (const auto transfer = to_store_.Ended(now_ + kInstant)) {
    --at(transfer->request).copies;
    AfterSave(transfer->request);
  }
  while (const auto transfer = to_fast_memory_.Ended(now_ + kInstant)) {
    --at(transfer->request).copies;
    AfterCopyToFastMemory(*transfer);
  }
  for (int i = 0; i < static_cast<int>(requests_.size()); ++i) {
    if (at(i).ended && !at(i).gone && at(i).copies == 0) {
      Finish(i);
    }
  }
}

void Driver::AfterSave(int index) {
  Request& request = at(index);
  if (!request.ended && (swaps() ? request.saving : !request.stored)) {
    request.stored = true;
    request.saving = false;
    request.slots = 0;
    scheduler_.Stored(index);
  }
}

void Driver::AfterCopyToFastMemory(const VirtualLink::Transfer& transfer) {
  Request& request = at(transfer.request);
  if (request.ended) {
    return;
  }
  if (request.loading) {
    request.loading = false;
    request.prefilled = request.slots;
    scheduler_.Prefilled(transfer.request, request.slots);
  } else {
    request.reload = swaps() ? Reload::kNone : Reload::kThere;
    request.away = false;
    scheduler_.Reloaded(transfer.request, transfer.bytes, transfer.seconds);
  }
}

void Driver::WaitForLink() {
  const std::optional<double> news[] = {to_store_.next(), to_fast_memory_.next()};
  // Places come nearer without news, but none is as far ahead as this.
  idle_ = news[0] || news[1] ? 0 : idle_ + 1;
  Require(idle_ < 100'000, "something runs, or moves, or will");
  if (world_.steady) {
    now_ += world_.iteration_s;
  } else if (news[0] || news[1]) {
    now_ = std::max(
        now_, news[0] && news[1] ? std::min(*news[0], *news[1]) : news[news[0] ? 0 : 1].value());
  }
}

void Driver::AbortSome() {
  const auto size = static_cast<int>(requests_.size());
  for (int i = 0; i < size; ++i) {
    if (at(i).running() && Chance(world_.abort)) {
      End(i);
    }
  }
  // One of these may wait for room with its place in the batch.
  for (int i = 0; i < size; ++i) {
    if (!at(i).begun && !at(i).gone && Chance(world_.withdraw)) {
      ++in_flight_;
      at(i).ended = true;
      if (Chance(0.5)) {
        scheduler_.Leave(i);
      }
      Finish(i);
    }
  }
}

bool Driver::WaitsForShared(const Request& request) const {
  if (!request.need.shared) {
    return false;
  }
  const auto [index, tokens] = *request.need.shared;
  const Request& other = requests_.at(static_cast<std::size_t>(index));
  return other.begun ? !other.ended && (other.loading || other.prefilled < tokens) : !other.gone;
}

// A request may be picked some iterations before there is room for it to begin.
void Driver::NoteWhoWaits() {
  for (Request& each : requests_) {
    each.waited = each.waited || (!each.begun && WaitsForShared(each));
    computed_ = computed_ || (each.running() && each.prefilling());
  }
}

// Requests begin in order, but that a shorter prompt may pass longer ones while others are
// computed.
void Driver::CheckOrder(int index) const {
  const Request& request = requests_.at(static_cast<std::size_t>(index));
  for (int i = 0; i < index; ++i) {
    const Request& before = requests_.at(static_cast<std::size_t>(i));
    Require(before.begun || before.gone || before.waited || WaitsForShared(before) ||
                (computed_ && request.need.prompt_tokens < before.need.prompt_tokens),
            "requests begin in order");
  }
}

void Driver::Begin(int index) {
  NoteWhoWaits();  // others have begun in this plan
  CheckOrder(index);
  ++in_flight_;
  Request& request = at(index);
  request.begun = true;
  request.stays = scheduler_.Stays(index);
  Require(in_flight_ <= options().batch, "the batch is full");
  Bytes memory;
  for (const Request& each : requests_) {
    if (each.begun && !each.gone) {
      memory += each.need.memory;
      memory += each.stays ? scheduler_.NeededRoom(each.need) - each.need.resident : Bytes{};
      memory -= HoldsResident(each) ? Bytes{} : each.need.resident;
    }
  }
  Require(memory <= options().memory, "the machine's memory holds all");
  if (Chance(world_.load)) {
    request.loading = history_.back().load = true;
    request.slots = static_cast<int>(random_() % static_cast<unsigned>(request.need.prompt_tokens));
    scheduler_.Loading(index);
    Copy(to_fast_memory_, index, request.slots, world_.bandwidth, scheduler_.now());
  }
}

void Driver::StartReload(int index) {
  Request& request = at(index);
  Require((transient(request) && Verifies(policy())) || (swaps() && request.away),
          "a reload is for a verify, or for a turn");
  Require(request.running() && request.stored && request.reload == Reload::kNone,
          "a reload is of a stored full cache of a running request");
  request.reload = Reload::kMoving;
  request.slots = swaps() ? 0 : request.full_slots();
  queued_reloads_ += to_fast_memory_.busy(now_ + kInstant) ? 1 : 0;
  Copy(to_fast_memory_, index, request.full_slots(), world_.bandwidth, scheduler_.DueOf(index));
}

void Driver::MoveOut(const SwapOut& out) {
  Request& request = at(out.request);
  Require(
      swaps() && request.running() && !request.away && !request.prefilling() && request.copies == 0,
      "a full cache leaves that is there");
  ++history_.back().swaps;
  Require(request.stored || !out.at_once, "what was never stored does not leave at once");
  request.away = true;
  request.saving = !out.at_once;
  Copy(to_store_, out.request, out.at_once ? 1 : request.full_slots(), world_.save_bandwidth, 0);
}

void Driver::Execute(const RowGroup& group) {
  Request& request = at(group.request);
  switch (group.kind) {
    case RowGroup::Kind::kPrefill:
      request.prefilled += group.rows;
      scheduler_.Prefilled(group.request, group.rows);
      if (!request.prefilling()) {
        AfterPrefill(group.request);
      }
      return;
    case RowGroup::Kind::kVerify:
      Verify(group.request);
      return;
    case RowGroup::Kind::kDecode:
    case RowGroup::Kind::kDraft:
      if (Verifies(policy())) {
        ++request.drafted;
        request.draft_ended = Chance(world_.end);
        scheduler_.Drafted(group.request, request.draft_ended, Chance(world_.doubt));
      } else {
        scheduler_.Decoded(group.request);
        Emit(group.request, 1);
      }
      return;
  }
}

void Driver::AfterPrefill(int index) {
  Request& request = at(index);
  Emit(index, 1);
  if (request.ended) {
    return;
  }
  if (transient(request) && Verifies(policy())) {
    Copy(to_store_, index, request.slots, world_.save_bandwidth, 0);
    return;
  }
  request.slots = 0;
  if (transient(request)) {
    scheduler_.Stored(index);
  }
}

void Driver::Verify(int index) {
  Request& request = at(index);
  int accepted = 0;
  while (accepted < request.drafted && Chance(world_.acceptance)) {
    ++accepted;
  }
  const bool ended = request.draft_ended && accepted == request.drafted;
  request.drafted = 0;
  request.draft_ended = false;
  request.reload = Reload::kNone;
  request.slots = 0;
  scheduler_.Verified(index, accepted);
  Emit(index, accepted + (ended ? 0 : 1));
  if (ended && !request.ended) {
    End(index);
  }
}

void Driver::Emit(int index, int tokens) {
  Request& request = at(index);
  request.emitted += tokens;
  emitted_ += tokens;
  Require(request.emitted <= request.need.max_tokens, "no more tokens than asked for");
  if (request.emitted == request.need.max_tokens || Chance(world_.end)) {
    End(index);
  }
}

// The link may still be at its caches; where it is not, leaving first makes no difference.
void Driver::End(int index) {
  at(index).ended = true;
  if (at(index).copies > 0 || Chance(0.5)) {
    scheduler_.Leave(index);
  } else {
    Finish(index);
  }
}

void Driver::Finish(int index) {
  at(index).gone = true;
  ++gone_;
  --in_flight_;
  scheduler_.Finish(index);
}

}  // namespace vericache::testing
