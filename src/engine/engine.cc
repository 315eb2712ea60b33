#include "engine/engine.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/memory.h"
#include "engine/memory_plan.h"
#include "ggml.h"
#include "sampling/acceptance.h"

namespace vericache {
namespace {

// Longer drafts are never all accepted.
constexpr int kMaxDraftLength = 1024;

double Seconds(Request::Clock::time_point from, Request::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void ValidateOptions(const EngineOptions& options) {
  if (!(options.keep > 0.0 && options.keep <= 1.0)) {
    throw UserError("--keep must be above 0 and at most 1");
  }
  if (options.draft_length < 1 || options.draft_length > kMaxDraftLength) {
    throw UserError("--draft-length must be from 1 to " + std::to_string(kMaxDraftLength));
  }
  if (options.batch < 1) {
    throw UserError("--batch must be at least 1");
  }
  if (options.prefill_chunk < 1) {
    throw UserError("--prefill-chunk must be at least 1");
  }
  if (options.link_bandwidth && !(*options.link_bandwidth > 0.0)) {
    throw UserError("--link-bandwidth must be above 0");
  }
  if (!(options.weights_share >= 0.0 && options.weights_share <= 1.0)) {
    throw UserError("--weights-share must be in [0, 1]");
  }
  if (options.threads < 1 || options.threads > GGML_MAX_N_THREADS) {
    throw UserError("--threads must be from 1 to " + std::to_string(GGML_MAX_N_THREADS));
  }
  MakeCompressor(options.compressor);
}

namespace {

// What the budget leaves for caches.
Bytes CacheRoom(const Model& model, const EngineOptions& options) {
  const Bytes weights{static_cast<std::uint64_t>(
      options.weights_share * static_cast<double>(model.weights().bytes().count))};
  if (weights > options.fast_memory) {
    throw UserError("too little fast memory: the weights' share is " + HumanBytes(weights) +
                    ", the budget " + HumanBytes(options.fast_memory));
  }
  return options.fast_memory - weights;
}

// The machine's memory without what an iteration works in. Throws UserError where that alone is
// too much.
Bytes MemoryForCaches(Transformer& transformer, const EngineOptions& options) {
  // A batch need not verify at once, but it may.
  const int context = transformer.model().params().context;
  const std::int64_t verified =
      std::int64_t{options.batch} * (std::min(LongestDraft(options), context) + 1);
  const int outputs = static_cast<int>(
      std::min<std::int64_t>(Verifies(options.policy) ? verified : options.batch, 1 << 16));
  const int prefilled = std::min(options.prefill_chunk, context);
  const Bytes work = transformer.WorkBytes(prefilled + outputs, outputs);
  const Bytes available = AvailableMemory();
  if (work > available) {
    throw UserError(
        "too little memory for an iteration: " + HumanBytes(work) + " are needed, " +
        HumanBytes(available) +
        " are available; a smaller --batch, --prefill-chunk or --draft-length needs less");
  }
  return available - work;
}

GroupShape GroupOf(const Model& model, KvFormat format) {
  const CacheGeometry geometry = model.params().geometry();
  return {.layers = geometry.layers, .page_bytes = PageLayout(format, geometry).page_bytes()};
}

SchedulerOptions SchedulerOptionsOf(const Model& model, const EngineOptions& options,
                                    KvFormat format, Bytes memory) {
  SchedulerOptions to{.policy = options.policy,
                      .draft_length = options.draft_length,
                      .adaptive = options.adaptive_draft,
                      .batch = options.batch,
                      .prefill_chunk = options.prefill_chunk,
                      .room = CacheRoom(model, options),
                      .memory = memory,
                      .reloads = Reloads(options),
                      .group = {GroupOf(model, format).bytes()},
                      .group_slots = kPageSlots};
  if (options.link_bandwidth) {
    to.link_bandwidth = *options.link_bandwidth;
  }
  return to;
}

}  // namespace

Engine::Engine(const Model& model, EngineOptions options, EngineEvents events)
    : model_(model),
      options_((ValidateOptions(options), std::move(options))),
      events_(std::move(events)),
      compressor_(MakeCompressor(options_.compressor)),
      transformer_(model, options_.threads),
      memory_limit_(MemoryForCaches(transformer_, options_)),
      fast_pool_(CacheRoom(model, options_)),
      store_pool_({std::numeric_limits<std::uint64_t>::max()}),
      scheduler_(SchedulerOptionsOf(model, options_, full_format_, memory_limit_)) {
  const bool moves = Reloads(options_) && Verifies(options_.policy);
  if (moves || options_.prefixes) {
    link_ = std::make_unique<Link>(options_.link_bandwidth);
  }
  if (moves) {
    moves_.emplace(options_.full_store, GroupOf(model, full_format_), *link_);
  }
  if (options_.prefixes) {
    prefixes_.emplace(options_.prefixes, model, *link_);
  }
}

void Engine::SetStop(std::function<bool()> stop) {
  stop_ = stop;
  transformer_.SetStop(std::move(stop));
}

int Engine::Submit(Prompt prompt) {
  const int context = model_.params().context;
  const int size = static_cast<int>(prompt.tokens.size());
  if (size == 0) {
    throw UserError("the prompt is empty");
  }
  if (size > context) {
    throw UserError("the prompt has " + std::to_string(size) + " tokens, the model's context " +
                    std::to_string(context));
  }
  if (prompt.max_tokens < 1) {
    throw UserError("--max-tokens must be at least 1");
  }
  // The last emitted token is never fed, so it needs no place in the context.
  prompt.max_tokens = std::min(prompt.max_tokens, context - size + 1);

  auto request = std::make_unique<Request>();
  const CacheNeed caches = PlanCaches(model_.params().geometry(), full_format_, options_,
                                      compressor_, size, prompt.max_tokens);
  RequestNeed need{.prompt_tokens = size,
                   .max_tokens = prompt.max_tokens,
                   .resident = caches.fast,
                   .memory = caches.fast + caches.store};
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
  request->index = submitted_++;
  request->result.id = prompt.id;
  request->result.prompt_tokens = size;
  request->prompt = std::move(prompt);
  results_.emplace_back();
  const int index = request->index;
  requests_.emplace(index, std::move(request));
  scheduler_.Submit(index, need);
  return index;
}

void Engine::Begin(Request& request) {
  const ModelParams& params = model_.params();
  const bool stays = options_.policy == Policy::kFull;
  PagePool& pool = stays || Reloads(options_) ? fast_pool_ : store_pool_;
  request.full.emplace(pool, stays ? PageKind::kResident : PageKind::kTransient, params.geometry(),
                       full_format_);
  if (!stays && compressor_.scorer && compressor_.scorer->query_window() > 0) {
    const int window = std::min(compressor_.scorer->query_window(), request.prompt_size());
    request.tap = std::make_unique<QueryTap>(params.layers, params.heads, params.head_dim,
                                             Position{request.prompt_size() - window}, window);
  }
  request.started = Request::Clock::now();
  if (prefixes_) {
    // What the compressor looks at is computed, and the last token, which gives the first logits.
    const int window = compressor_.scorer ? compressor_.scorer->query_window() : 0;
    if (prefixes_->StartLoad(request, std::max(1, window), scheduler_.now())) {
      scheduler_.Loading(request.index);
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
    } else if (!std::exchange(request->saved, true)) {  // all of it, after the prefill
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
  const bool loading = request.prefilled == 0;
  const int loaded = Prefixes::Loaded(request);
  if (!loading) {
    return;
  }
  if (loaded == 0) {  // computed instead
    request.full->Truncate(request.full->tail_slots(LayerId{0}));
  }
  request.prefilled = loaded;
  request.result.reused_tokens = loaded;
  scheduler_.Prefilled(request.index, loaded);
}

void Engine::StartReload(Request& request) {
  request.full.emplace(fast_pool_, PageKind::kTransient, model_.params().geometry(), full_format_);
  Check(request.full->ExtendForLoad(request.full_slots()), "the scheduler keeps room for it");
  ++request.result.reloads;
  moves_->Reload(request, request.full_slots(), scheduler_.VerifyOf(request.index));
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
                    .tap = group.kind == RowGroup::Kind::kPrefill ? request.tap.get() : nullptr});
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
  for (const int index : plan.admit) {
    Begin(*requests_.at(index));
  }
  for (const int index : plan.reload) {
    StartReload(*requests_.at(index));
  }
  if (plan.rows.empty()) {
    if (requests_.empty()) {
      return false;
    }
    if (link_) {
      link_->WaitForOne(stop_);
    }
    scheduler_.EndIteration(std::nullopt);
    return true;
  }
  Compute(plan.rows);
  return !requests_.empty();
}

void Engine::Compute(std::span<const RowGroup> plan) {
  const Request::Clock::time_point start = Request::Clock::now();
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
  scheduler_.EndIteration(Seconds(start, Request::Clock::now()));
}

void Engine::Emit(Request& request, TokenId token, std::span<const float> logits) {
  request.digest.Add(logits);
  request.result.tokens.push_back(token);
  const bool end = options_.is_end && options_.is_end(token);
  if (end || request.emitted() == request.prompt.max_tokens) {
    request.result.finish_reason = end ? FinishReason::kEnd : FinishReason::kLength;
    request.finished = true;
  }
}

void Engine::AfterPrefill(Request& request, const RowGroup& group, std::span<const float> logits) {
  request.prefilled += group.rows;
  if (events_.on_prefill) {
    events_.on_prefill(request.index, request.prefilled, request.prompt_size());
  }
  scheduler_.Prefilled(request.index, group.rows);
  if (request.prefilled < request.prompt_size()) {
    return;
  }
  const TokenId token = sampler_.Sample(logits, Position{request.prompt_size() - 1});
  Emit(request, token, logits);
  if (options_.policy != Policy::kFull && !request.finished) {
    MakeCompressed(request);
  } else if (prefixes_) {
    prefixes_->StartSave(request);
  }
  request.decoding_since = Request::Clock::now();
  request.result.prefill_s = Seconds(request.started, request.decoding_since);
  if (events_.on_tokens) {
    events_.on_tokens(request.index, std::span(&token, 1));
  }
  if (request.finished) {
    Finish(request);
  }
}

void Engine::MakeCompressed(Request& request) {
  request.compressed.emplace(Compress(compressor_,
                                      {.full = *request.full,
                                       .tap = request.tap.get(),
                                       .positions = request.prompt_size(),
                                       .heads = model_.params().heads},
                                      options_.keep, fast_pool_));
  request.tap.reset();
  request.result.full_cache = request.full->peak_bytes();
  if (prefixes_ && options_.policy != Policy::kLossy) {
    prefixes_->StartSave(request);
  }
  if (moves_) {
    moves_->SaveAll(request);
  } else if (options_.policy == Policy::kLossy) {
    request.full.reset();
    if (Reloads(options_)) {
      scheduler_.Stored(request.index);
    }
  }
  if (events_.on_compressed) {
    events_.on_compressed(request.index, *request.compressed);
  }
}

void Engine::AfterDecode(Request& request, std::span<const float> logits) {
  const TokenId token = sampler_.Sample(logits, Position{request.position()});
  Emit(request, token, logits);
  scheduler_.Decoded(request.index);
  if (events_.on_tokens) {
    events_.on_tokens(request.index, std::span(&token, 1));
  }
  if (request.finished) {
    Finish(request);
  }
}

void Engine::AfterDraft(Request& request, std::span<const float> logits) {
  const int position = request.position() + static_cast<int>(request.drafted.size());
  const TokenId token = sampler_.Sample(logits, Position{position});
  request.result.drafted_tokens += 1;
  if (options_.policy == Policy::kLossy) {
    Emit(request, token, logits);
    scheduler_.Decoded(request.index);
    Check(request.compressed->Pack(compressor_.residual), "memory was reserved at admission");
    if (events_.on_tokens) {
      events_.on_tokens(request.index, std::span(&token, 1));
    }
    if (request.finished) {
      Finish(request);
    }
    return;
  }
  request.drafted.push_back(token);
  scheduler_.Drafted(request.index, options_.is_end && options_.is_end(token));
}

void Engine::AfterVerify(Request& request, std::span<const float> logits) {
  const auto vocabulary = static_cast<std::size_t>(model_.params().vocabulary);
  const std::size_t rows = request.drafted.size() + 1;
  const int first_position = request.position();
  std::vector<TokenId> sampled;
  sampled.reserve(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    sampled.push_back(sampler_.Sample(logits.subspan(i * vocabulary, vocabulary),
                                      Position{first_position + static_cast<int>(i)}));
  }
  const std::size_t accepted = AcceptanceLength(request.drafted, sampled);
  const std::size_t before = request.result.tokens.size();
  for (std::size_t i = 0; i <= accepted && !request.finished; ++i) {
    Emit(request, sampled[i], logits.subspan(i * vocabulary, vocabulary));
  }
  request.result.rounds += 1;
  request.result.accepted_tokens += static_cast<int>(accepted);
  drafted_ += static_cast<std::int64_t>(request.drafted.size());
  accepted_ += static_cast<std::int64_t>(accepted);

  // The full cache keeps the rows whose tokens were right; the compressed one goes back to where
  // the round began and takes those rows over, as the verify computed them.
  const int kept = static_cast<int>(accepted) + 1;
  request.full->Truncate(static_cast<int>(rows) - kept);
  request.compressed->Truncate(static_cast<int>(request.drafted.size()));
  request.drafted.clear();
  request.result.full_cache = std::max(request.result.full_cache, request.full->peak_bytes());
  scheduler_.Verified(request.index, static_cast<int>(accepted));
  if (!request.finished) {
    Check(request.compressed->AppendTail(*request.full, kept) &&
              request.compressed->Pack(compressor_.residual),
          "memory was reserved at admission");
    if (moves_) {
      moves_->SaveRows(request, first_position, request.full_slots());
      request.full.reset();
    }
  }
  if (events_.on_tokens) {
    events_.on_tokens(request.index, std::span(request.result.tokens).subspan(before));
  }
  if (request.finished) {
    Finish(request);
  }
}

// The request is over; what it holds goes when the link has let go of it.
void Engine::Finish(Request& request) {
  request.finished = true;
  scheduler_.Leave(request.index);
  Result& result = request.result;
  result.decode_s = Seconds(request.decoding_since, Request::Clock::now());
  result.logits_digest = request.digest.value();
  if (request.full) {
    result.full_cache = std::max(result.full_cache, request.full->peak_bytes());
  }
  if (request.compressed) {
    result.compressed_cache = request.compressed->peak_bytes();
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
  results_[static_cast<std::size_t>(request.index)] = std::move(result);
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
  const int first = submitted_;
  for (Prompt& prompt : prompts) {
    Submit(std::move(prompt));
  }
  while (Step()) {
  }
  return {results_.begin() + first, results_.end()};
}

}  // namespace vericache
