#include "engine/engine.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/memory.h"
#include "compressor/profile.h"
#include "engine/compressor_for.h"
#include "engine/memory_plan.h"

namespace vericache {

Engine::Engine(const Model& model, EngineOptions options, EngineEvents events)
    : model_(model),
      options_((ValidateOptions(options), std::move(options))),
      events_(std::move(events)),
      compressor_(CompressorFor(options_.compressor, model)),
      transformer_(model, options_.threads),
      memory_limit_(MemoryForCaches(transformer_, options_)),
      fast_pool_(CacheRoom(model, options_)),
      store_pool_({std::numeric_limits<std::uint64_t>::max()}),
      scheduler_(SchedulerOptionsOf(model, options_, full_format_, memory_limit_)) {
  const bool moves = Reloads(options_) && options_.policy != Policy::kLossy;
  if (moves || options_.prefixes) {
    link_ = std::make_unique<Link>(options_.link_bandwidth);
  }
  if (moves) {
    moves_.emplace(options_.full_store, GroupOf(model, full_format_), *link_);
  }
  if (options_.prefixes) {
    // And what a profile says, since its file may change.
    const std::string layers = ToText({.layers = compressor_.layers});
    const std::string compressed_as =
        options_.policy == Policy::kFull || compressor_.refreshes()
            ? ""
            : options_.compressor + " " + std::to_string(options_.keep) + " " + layers;
    prefixes_.emplace(options_.prefixes, model, compressed_as, *link_);
  }
}

void Engine::SetStop(std::function<bool()> stop) {
  stop_ = stop;
  transformer_.SetStop(std::move(stop));
}

// What it needs, its max_tokens cut at the context.
RequestNeed Engine::NeedOf(const Prompt& prompt) const {
  const int context = model_.params().context;
  const int size = static_cast<int>(prompt.tokens.size());
  if (size == 0) {
    throw UserError("the prompt is empty");
  }
  if (size > context) {
    throw UserError("the prompt has " + std::to_string(size) + " tokens, the model's context " +
                    std::to_string(context));
  }
  for (const TokenId token : prompt.tokens) {
    if (Raw(token) < 0 || Raw(token) >= model_.params().vocabulary) {
      throw UserError("the prompt has token " + std::to_string(Raw(token)) +
                      ", the model's vocabulary " + std::to_string(model_.params().vocabulary));
    }
  }
  ValidateSampling(prompt.sampling);
  if (prompt.max_tokens < 1) {
    throw UserError("--max-tokens must be at least 1");
  }
  if (prompt.draft_length && *prompt.draft_length < 0) {
    throw UserError("the draft length must not be negative");
  }
  // The last emitted token is never fed, so it needs no place in the context.
  const int max_tokens = std::min(prompt.max_tokens, context - size + 1);
  const CacheNeed caches =
      PlanCaches(model_.params().geometry(), full_format_, options_, compressor_, size, max_tokens);
  const RequestNeed need{.prompt_tokens = size,
                         .max_tokens = max_tokens,
                         .resident = caches.fast,
                         .memory = caches.fast + caches.store,
                         .draft_length = prompt.draft_length};
  const Bytes fast = scheduler_.NeededRoom(need);
  if (fast > fast_pool_.budget()) {
    throw UserError("too little fast memory: a prompt of " + std::to_string(size) +
                    " tokens and up to " + std::to_string(need.max_tokens) + " new ones needs " +
                    HumanBytes(fast) + ", the budget leaves " + HumanBytes(fast_pool_.budget()));
  }
  if (fast + caches.store > memory_limit_) {
    throw UserError("too little memory for the caches of a prompt of " + std::to_string(size) +
                    " tokens: " + HumanBytes(fast + caches.store) + " are needed, " +
                    HumanBytes(memory_limit_) + " are available");
  }
  return need;
}

int Engine::Submit(Prompt prompt) {
  RequestNeed need = NeedOf(prompt);
  prompt.max_tokens = need.max_tokens;
  auto request = std::make_unique<Request>();
  request->index = submitted_++;
  request->result.id = prompt.id;
  request->result.prompt_tokens = need.prompt_tokens;
  request->result.sampling = prompt.sampling;
  request->sampler = RoundSampler(prompt.sampling);
  if (prompt.grammar) {
    request->grammars.push_back(*prompt.grammar);
  }
  request->prompt = std::move(prompt);
  if (prefixes_) {
    need.shared = prefixes_->Coming(*request, requests_, LeastComputed());
  }
  const int index = request->index;
  requests_.emplace(index, std::move(request));
  scheduler_.Submit(index, need);
  return index;
}

bool Engine::Cancel(int index) {
  const auto at = requests_.find(index);
  if (at == requests_.end() || at->second->finished) {
    return false;
  }
  Request& request = *at->second;
  request.result.finish_reason = FinishReason::kCancelled;
  if (request.prefix) {
    request.prefix->Cancel();
  }
  Finish(request);
  Sweep();
  return true;
}

PageKind Engine::KindOfFull(const Request& request) const {
  const bool resident = options_.policy == Policy::kFull || scheduler_.Stays(request.index);
  return resident ? PageKind::kResident : PageKind::kTransient;
}

// Whether the full cache leaves fast memory between verifies.
bool Engine::Moves(const Request& request) const {
  return moves_ && !scheduler_.Stays(request.index);
}

TapNeeds Engine::NeededTaps() const {
  return options_.policy == Policy::kFull ? TapNeeds{} : compressor_.needs();
}

// Of a prompt: what the compressor looks at, and the last token, which gives the first logits.
int Engine::LeastComputed() const { return std::max(1, NeededTaps().least_computed()); }

void Engine::Begin(Request& request) {
  const ModelParams& params = model_.params();
  const bool full = options_.policy == Policy::kFull;
  PagePool& pool = full || Reloads(options_) ? fast_pool_ : store_pool_;
  request.full.emplace(pool, KindOfFull(request), params.geometry(), full_format_);
  const TapNeeds needs = NeededTaps();
  if (needs.any()) {
    request.taps =
        std::make_unique<Taps>(needs, params.geometry(), params.heads, request.prompt_size(),
                               options_.threads, LongestDraft(options_) + 1);
  }
  request.started = Clock::now();
  if (prefixes_) {
    if (prefixes_->StartLoad(request, requests_, LeastComputed(), scheduler_.now())) {
      scheduler_.Loading(request.index);
      if (!request.prefix) {
        TakePrefix(request);
      }
    }
  }
}

void Engine::CollectMoves() {
  if (!link_) {
    return;
  }
  for (const auto& [index, request] : requests_) {
    if (request->finished) {
      continue;
    }
    CollectPrefix(*request);
    const std::optional<Move> move = moves_ ? moves_->Ended(*request) : std::nullopt;
    if (!move) {
      continue;
    }
    if (move->kind == Move::Kind::kFailed) {
      request->result.error = move->error;
      request->result.finish_reason = FinishReason::kError;
      Finish(*request);
    } else if (move->kind == Move::Kind::kReloaded) {
      scheduler_.Reloaded(index, move->bytes, move->seconds);
    } else if (std::exchange(request->leaving, false)) {
      request->full.reset();
      scheduler_.Stored(index);
    }
  }
  Sweep();
}

void Engine::CollectPrefix(Request& request) {
  if (!request.prefix || !request.prefix->done()) {
    return;
  }
  if (request.prefilled == 0) {
    TakePrefix(request);
  } else {  // it was kept
    request.prefix.reset();
  }
}

// The prompt is computed from where its prefix ends.
void Engine::TakePrefix(Request& request) {
  const int tokens = Prefixes::Loaded(request);
  request.full->Truncate(request.full->tail_slots(LayerId{0}) - tokens);
  request.prefilled = tokens;
  request.result.reused_tokens = tokens;
  scheduler_.Prefilled(request.index, tokens);
}

void Engine::StartReload(Request& request) {
  request.full.emplace(fast_pool_, KindOfFull(request), model_.params().geometry(), full_format_);
  Check(request.full->ExtendForLoad(request.full_slots()), "the scheduler keeps room for it");
  ++request.result.reloads;
  moves_->Reload(request, request.full_slots(), scheduler_.DueOf(request.index));
}

void Engine::MoveOut(Request& request, bool at_once) {
  if (at_once) {
    moves_->SaveRows(request, request.full_slots());
    request.full.reset();
  } else {
    moves_->SaveAll(request, request.full_slots());
    request.leaving = true;
  }
}

void Engine::PrepareRows(const RowGroup& group, Request& request) {
  const int first_row = static_cast<int>(row_tokens_.size());
  const bool drafting = group.kind == RowGroup::Kind::kDraft;
  KvCache& cache = drafting ? *request.compressed : *request.full;
  Check(cache.Extend(group.rows), "memory was reserved at admission");

  int position = request.position();
  if (group.kind == RowGroup::Kind::kPrefill) {
    position = request.prefilled;
  } else if (drafting) {
    position += static_cast<int>(request.drafted.size());
  }
  tasks_.push_back({.cache = &cache,
                    .first_row = first_row,
                    .rows = group.rows,
                    .first_position = position,
                    .taps = drafting ? nullptr : request.taps.get(),
                    .use = group.kind == RowGroup::Kind::kPrefill ? AttentionUse::kPrefill
                           : drafting                             ? AttentionUse::kDraft
                                                                  : AttentionUse::kFull});
  for (int i = 0; i < group.rows; ++i) {
    TokenId token{};
    if (group.kind == RowGroup::Kind::kPrefill) {
      token = request.prompt.tokens[static_cast<std::size_t>(position + i)];
    } else {
      // Row 0 of a verify is the last emitted token, the others are the drafted ones; a draft feeds
      // the newest of them all.
      const std::size_t behind = drafting ? request.drafted.size() : static_cast<std::size_t>(i);
      token = behind == 0 ? request.result.tokens.back() : request.drafted[behind - 1];
    }
    row_tokens_.push_back(token);
    row_positions_.push_back(Position{position + i});
    const bool last_of_prompt = position + i + 1 == request.prompt_size();
    if (group.kind != RowGroup::Kind::kPrefill || last_of_prompt) {
      row_outputs_.push_back(first_row + i);
    }
  }
}

bool Engine::Step() {
  if (stop_ && stop_()) {
    throw Interrupted();
  }
  CollectMoves();
  const IterationPlan& plan = scheduler_.Plan();
  for (const SwapOut& out : plan.swap_out) {
    MoveOut(*requests_.at(out.request), out.at_once);
  }
  bool ready = false;  // a request that has no rows in the plan, but could have
  for (const int index : plan.admit) {
    Begin(*requests_.at(index));
    ready = ready || requests_.at(index)->prefilled > 0;
  }
  for (const int index : plan.reload) {
    StartReload(*requests_.at(index));
  }
  if (plan.rows.empty()) {
    if (requests_.empty()) {
      return false;
    }
    if (link_ && !ready) {
      const Clock::time_point start = Clock::now();
      link_->WaitForOne([this] { return (stop_ && stop_()) || (news_ && news_()); });
      waiting_s_ += SecondsSince(start);
    }
    scheduler_.EndIteration(std::nullopt);
    return true;
  }
  Compute(plan.rows);
  return !requests_.empty();
}

void Engine::Compute(std::span<const RowGroup> plan) {
  const Clock::time_point start = Clock::now();
  row_tokens_.clear();
  row_positions_.clear();
  row_outputs_.clear();
  tasks_.clear();
  bool exact = false;
  for (const RowGroup& group : plan) {
    PrepareRows(group, *requests_.at(group.request));
    exact = exact || group.kind != RowGroup::Kind::kDraft;
  }
  std::span<const float> logits = transformer_.Forward({.tokens = row_tokens_,
                                                        .positions = row_positions_,
                                                        .outputs = row_outputs_,
                                                        .tasks = tasks_,
                                                        .exact = exact});
  const Clock::time_point computed = Clock::now();
  const auto vocabulary = static_cast<std::size_t>(model_.params().vocabulary);
  for (const RowGroup& group : plan) {
    Request& request = *requests_.at(group.request);
    const bool prefill = group.kind == RowGroup::Kind::kPrefill;
    const bool ends = prefill && request.prefilled + group.rows == request.prompt_size();
    const std::size_t outputs = prefill ? (ends ? 1 : 0) : static_cast<std::size_t>(group.rows);
    const std::span<const float> own = logits.subspan(0, outputs * vocabulary);
    logits = logits.subspan(outputs * vocabulary);
    switch (group.kind) {
      case RowGroup::Kind::kPrefill:
        AfterPrefill(request, group, own);
        break;
      case RowGroup::Kind::kDecode:
        AfterDecode(request, own);
        break;
      case RowGroup::Kind::kDraft:
        AfterDraft(request, own);
        break;
      case RowGroup::Kind::kVerify:
        AfterVerify(request, own);
        break;
    }
  }
  Sweep();
  ++iterations_;
  const Clock::time_point end = Clock::now();
  forward_s_ += Seconds(computed - start);
  after_s_ += Seconds(end - computed);
  scheduler_.EndIteration(Seconds(end - start));
}

TimeSplit Engine::time_split() const {
  const auto attention = transformer_.attention_seconds();
  TimeSplit split{.prefill_attention = attention[static_cast<std::size_t>(AttentionUse::kPrefill)],
                  .full_attention = attention[static_cast<std::size_t>(AttentionUse::kFull)],
                  .draft_attention = attention[static_cast<std::size_t>(AttentionUse::kDraft)],
                  .after = after_s_,
                  .waiting = waiting_s_};
  split.rest_of_graph =
      forward_s_ - split.prefill_attention - split.full_attention - split.draft_attention;
  return split;
}

// The request is over; what it holds goes when the link has let go of it.
void Engine::Finish(Request& request) {
  request.finished = true;
  scheduler_.Leave(request.index);
  Result& result = request.result;
  if (request.emitted() > 0) {
    result.decode_s = SecondsSince(request.decoding_since);
  }
  result.logits_digest = request.digest.value();
  if (request.full) {
    result.full_cache = std::max(result.full_cache, request.full->peak_bytes());
  }
  if (request.compressed) {
    result.compressed_cache = std::max(result.compressed_cache, request.compressed->peak_bytes());
  }
  request.compressed.reset();
  for (const auto& transfer : {request.save, request.reload}) {
    if (transfer) {
      transfer->Cancel();
    }
  }
  if (events_.on_finish) {
    events_.on_finish(request.index, result);
  }
  const auto at = static_cast<std::size_t>(request.index - results_from_);
  if (at < results_.size()) {
    results_[at] = std::move(result);
  }
}

// Lets go of requests that are over and that the link has no part of any more.
void Engine::Sweep() {
  std::erase_if(requests_, [this](const auto& each) {
    Request& request = *each.second;
    for (auto* transfer : {&request.save, &request.reload, &request.prefix}) {
      if (request.finished && *transfer && (*transfer)->done()) {
        transfer->reset();
      }
    }
    if (!request.finished || request.moving()) {
      return false;
    }
    request.full.reset();
    scheduler_.Finish(request.index);
    return true;
  });
}

std::vector<Result> Engine::Run(std::vector<Prompt> prompts) {
  results_from_ = submitted_;
  results_.assign(prompts.size(), {});
  for (Prompt& prompt : prompts) {
    Submit(std::move(prompt));
  }
  while (Step()) {
  }
  return std::exchange(results_, {});
}

}  // namespace vericache
