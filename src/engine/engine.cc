#include "engine/engine.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/memory.h"
#include "engine/memory_plan.h"
#include "sampling/acceptance.h"

namespace vericache {
namespace {

double Seconds(Request::Clock::time_point from, Request::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void ValidateOptions(const EngineOptions& options) {
  if (!(options.keep > 0.0 && options.keep <= 1.0)) {
    throw UserError("--keep must be above 0 and at most 1");
  }
  if (options.draft_length < 1) {
    throw UserError("--draft-length must be at least 1");
  }
  if (options.batch < 1) {
    throw UserError("--batch must be at least 1");
  }
  if (options.prefill_chunk < 1) {
    throw UserError("--prefill-chunk must be at least 1");
  }
  if (options.threads < 1) {
    throw UserError("--threads must be at least 1");
  }
  MakeCompressor(options.compressor);
}

Engine::Engine(const Model& model, EngineOptions options, EngineEvents events)
    : model_(model),
      options_(std::move(options)),
      events_(std::move(events)),
      compressor_(MakeCompressor(options_.compressor)),
      memory_limit_(AvailableMemory()),
      fast_pool_(options_.fast_memory),
      store_pool_({std::numeric_limits<std::uint64_t>::max()}),
      transformer_(model, options_.threads) {
  ValidateOptions(options_);
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
  const CacheNeed need = PlanCaches(model_.params().geometry(), full_format_, options_, compressor_,
                                    size, prompt.max_tokens);
  if (need.fast > options_.fast_memory) {
    throw UserError("too little fast memory: a prompt of " + std::to_string(size) +
                    " tokens needs " + HumanBytes(need.fast) + ", the budget is " +
                    HumanBytes(options_.fast_memory));
  }
  if (need.fast + need.store > memory_limit_) {
    throw UserError("too little memory for the caches of a prompt of " + std::to_string(size) +
                    " tokens: " + HumanBytes(need.fast + need.store) + " are needed, " +
                    HumanBytes(memory_limit_) + " are available");
  }
  request->index = submitted_++;
  request->reserved_fast = need.fast;
  request->reserved_store = need.store;
  request->result.id = prompt.id;
  request->result.prompt_tokens = size;
  request->prompt = std::move(prompt);
  results_.emplace_back();
  waiting_.push_back(std::move(request));
  return waiting_.back()->index;
}

void Engine::Admit() {
  while (!waiting_.empty() && static_cast<int>(active_.size()) < options_.batch) {
    Request& request = *waiting_.front();
    const Bytes all = request.reserved_fast + request.reserved_store;
    if (reserved_fast_ + request.reserved_fast > options_.fast_memory ||
        reserved_all_ + all > memory_limit_) {
      return;  // in order: nobody overtakes
    }
    reserved_fast_ += request.reserved_fast;
    reserved_all_ += all;
    const ModelParams& params = model_.params();
    PagePool& pool = options_.policy == Policy::kFull ? fast_pool_ : store_pool_;
    request.full.emplace(pool, PageKind::kResident, params.geometry(), full_format_);
    if (options_.policy != Policy::kFull && compressor_.scorer &&
        compressor_.scorer->query_window() > 0) {
      const int window = std::min(compressor_.scorer->query_window(), request.prompt_size());
      request.tap = std::make_unique<QueryTap>(params.layers, params.heads, params.head_dim,
                                               Position{request.prompt_size() - window}, window);
    }
    request.started = Request::Clock::now();
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
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
  Admit();
  if (active_.empty()) {
    return false;
  }
  std::vector<RequestView> views;
  views.reserve(active_.size());
  for (const auto& request : active_) {
    views.push_back(request->view());
  }
  const std::vector<RowGroup> plan =
      PlanIteration(options_.policy, views, options_.draft_length, options_.prefill_chunk);

  row_tokens_.clear();
  row_positions_.clear();
  row_outputs_.clear();
  tasks_.clear();
  bool exact = false;
  for (const RowGroup& group : plan) {
    PrepareRows(group, *active_[static_cast<std::size_t>(group.request)]);
    exact = exact || group.kind != RowGroup::Kind::kDraft;
  }
  std::span<const float> logits = transformer_.Forward({.tokens = row_tokens_,
                                                        .positions = row_positions_,
                                                        .outputs = row_outputs_,
                                                        .tasks = tasks_,
                                                        .exact = exact});
  const auto vocabulary = static_cast<std::size_t>(model_.params().vocabulary);
  for (const RowGroup& group : plan) {
    Request& request = *active_[static_cast<std::size_t>(group.request)];
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
  std::erase_if(active_, [](const auto& request) { return request->finished; });
  return !active_.empty() || !waiting_.empty();
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
  if (request.prefilled < request.prompt_size()) {
    return;
  }
  const TokenId token = sampler_.Sample(logits, Position{request.prompt_size() - 1});
  Emit(request, token, logits);
  if (options_.policy != Policy::kFull && !request.finished) {
    MakeCompressed(request);
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
  if (options_.policy == Policy::kLossy) {
    request.result.full_cache = request.full->peak_bytes();
    request.full.reset();
  }
  if (events_.on_compressed) {
    events_.on_compressed(request.index, *request.compressed);
  }
}

void Engine::AfterDecode(Request& request, std::span<const float> logits) {
  const TokenId token = sampler_.Sample(logits, Position{request.position()});
  Emit(request, token, logits);
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
  request.draft_ended = options_.is_end && options_.is_end(token);
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

  // The full cache keeps the rows whose tokens were right; the compressed one goes back to where
  // the round began and takes those rows over, as the verify computed them.
  const int kept = static_cast<int>(accepted) + 1;
  request.full->Truncate(static_cast<int>(rows) - kept);
  request.compressed->Truncate(static_cast<int>(request.drafted.size()));
  request.drafted.clear();
  request.draft_ended = false;
  if (!request.finished) {
    Check(request.compressed->AppendTail(*request.full, kept) &&
              request.compressed->Pack(compressor_.residual),
          "memory was reserved at admission");
  }
  if (events_.on_tokens) {
    events_.on_tokens(request.index, std::span(request.result.tokens).subspan(before));
  }
  if (request.finished) {
    Finish(request);
  }
}

void Engine::Finish(Request& request) {
  Result& result = request.result;
  result.decode_s = Seconds(request.decoding_since, Request::Clock::now());
  result.logits_digest = request.digest.value();
  if (request.full) {
    result.full_cache = request.full->peak_bytes();
  }
  if (request.compressed) {
    result.compressed_cache = request.compressed->peak_bytes();
  }
  request.full.reset();
  request.compressed.reset();
  reserved_fast_ -= request.reserved_fast;
  reserved_all_ -= request.reserved_fast + request.reserved_store;
  if (events_.on_finish) {
    events_.on_finish(request.index, result);
  }
  results_[static_cast<std::size_t>(request.index)] = std::move(result);
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
