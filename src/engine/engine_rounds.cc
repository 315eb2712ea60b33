// What an iteration's logits mean for each request: the part of the engine that samples, verifies
// and repairs.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "compressor/refresh.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "model/rope.h"

namespace vericache {
namespace {

// A drafted token with a smaller margin may well be rejected: on SmolLM2-135M (SnapKV at keep 0.2
// and KIVI-4, 939 drafts on two prompts) 7 of 14 were accepted below it, and 13 of 14 between it
// and 0.5.
constexpr float kDoubt = 0.25F;

}  // namespace

void Engine::Emit(Request& request, TokenId token, std::span<const float> logits) {
  if (!request.grammars.empty() && !request.grammars.front().Accept(token)) {
    request.result.error = "none of the model's tokens goes on as the grammar wants";
    request.result.finish_reason = FinishReason::kError;
    request.finished = true;
    return;
  }
  request.digest.Add(logits);
  request.result.tokens.push_back(token);
  const bool end = options_.is_end && options_.is_end(token);
  const bool stop = request.prompt.ends && request.prompt.ends({token, logits});
  if (end || stop || request.emitted() == request.prompt.max_tokens) {
    request.result.finish_reason = end    ? FinishReason::kEnd
                                   : stop ? FinishReason::kStop
                                          : FinishReason::kLength;
    request.finished = true;
  }
}

// What the request's grammar leaves of the logits of the newest rows: drafts, verifies and decoding
// see the same, so that drafts are accepted as without one. A greedy token that may come anyway
// needs none of the work.
std::span<const float> Engine::Constrained(const Request& request, std::span<const float> logits) {
  if (request.grammars.empty()) {
    return logits;
  }
  const auto vocabulary = static_cast<std::size_t>(model_.params().vocabulary);
  const SamplingOptions& sampling = request.prompt.sampling;
  const bool greedy = sampling.temperature == 0.0 && sampling.presence_penalty == 0.0 &&
                      sampling.frequency_penalty == 0.0;
  constrained_.assign(logits.begin(), logits.end());
  const std::size_t rows = logits.size() / vocabulary;
  for (std::size_t row = 0; row < rows; ++row) {
    const Grammar& grammar = request.grammars[request.grammars.size() - rows + row];
    const std::span<float> own = std::span(constrained_).subspan(row * vocabulary, vocabulary);
    const TokenId best{static_cast<std::int32_t>(std::ranges::max_element(own) - own.begin())};
    if (!greedy || !grammar.Allows(best)) {
      grammar.Mask(own);
      if (*std::ranges::max_element(own) == -std::numeric_limits<float>::infinity()) {
        own[0] = 0.0F;  // something must be picked; Emit refuses it
      }
    }
  }
  return constrained_;
}

// What was emitted from token `from` on.
void Engine::Tell(const Request& request, std::size_t from) const {
  const std::span<const TokenId> tokens = std::span(request.result.tokens).subspan(from);
  if (events_.on_tokens && !tokens.empty()) {
    events_.on_tokens(request.index, tokens);
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
  const TokenId token =
      request.sampler.Sample(Constrained(request, logits), Position{request.prompt_size() - 1});
  Emit(request, token, logits);
  if (options_.policy != Policy::kFull && !request.finished) {
    MakeCompressed(request);
  } else if (prefixes_) {
    prefixes_->StartSave(request);
  }
  request.decoding_since = Clock::now();
  request.result.prefill_s = Seconds(request.decoding_since - request.started);
  Tell(request, 0);
  if (request.finished) {
    Finish(request);
  }
}

void Engine::MakeCompressed(Request& request) {
  request.compressed.emplace(fast_pool_, PageKind::kResident, model_.params().geometry(),
                             full_format_, compressor_.packed_formats());
  const auto kept = std::exchange(request.compressed_bytes, nullptr);
  request.result.reused_compressed =
      kept && !compressor_.refreshes() && request.compressed->Restore(*kept);
  if (!request.result.reused_compressed) {
    request.compressed.reset();
    if (const int chunk = compressor_.needs().repeated_chunk; chunk > 0) {
      RecordRepetition(transformer_, *request.full, request.prompt.tokens, options_.repeat, chunk,
                       options_.prefill_chunk, *request.taps);
    }
    const std::vector<float> rotation =
        AverageRotation(model_, Position{request.prompt_size()}, compressor_.future_positions());
    request.compressed.emplace(Compress(compressor_,
                                        {.full = *request.full,
                                         .taps = request.taps.get(),
                                         .positions = request.prompt_size(),
                                         .heads = model_.params().heads,
                                         .future_rotation = rotation},
                                        KeepOf(options_, request.prompt_size()), fast_pool_,
                                        compressor_.refreshes() ? &request.refresh : nullptr));
  }
  if (compressor_.refreshes()) {
    request.taps->prompt_is_done = true;
    request.taps->repeated.reset();
  } else {
    request.taps.reset();
  }
  request.result.full_cache = request.full->peak_bytes();
  if (prefixes_ && options_.policy != Policy::kLossy) {
    prefixes_->StartSave(request);
  }
  if (Moves(request)) {
    MoveOut(request, /*at_once=*/false);
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
  const std::size_t before = request.result.tokens.size();
  const TokenId token = request.sampler.Sample(
      Constrained(request, logits), Position{request.position()}, {request.result.tokens, {}});
  Emit(request, token, logits);
  scheduler_.Decoded(request.index);
  Tell(request, before);
  if (request.finished) {
    Finish(request);
  }
}

void Engine::AfterDraft(Request& request, std::span<const float> logits) {
  const int position = request.position() + static_cast<int>(request.drafted.size());
  request.result.drafted_tokens += 1;
  if (options_.policy == Policy::kLossy) {
    const std::size_t before = request.result.tokens.size();
    const TokenId token = request.sampler.Sample(Constrained(request, logits), Position{position},
                                                 {request.result.tokens, {}});
    Emit(request, token, logits);
    scheduler_.Decoded(request.index);
    Check(request.compressed->Pack(compressor_.residual), "memory was reserved at admission");
    Tell(request, before);
    if (request.finished) {
      Finish(request);
    }
    return;
  }
  const std::span<const float> constrained = Constrained(request, logits);
  const TokenId token = request.sampler.Draft(constrained, Position{position},
                                              {request.result.tokens, request.drafted});
  request.drafted.push_back(token);
  bool ends = options_.is_end && options_.is_end(token);
  if (!request.grammars.empty()) {
    request.grammars.push_back(request.grammars.back());
    ends = !request.grammars.back().Accept(token) || ends;
  }
  if (events_.on_drafted) {
    events_.on_drafted(request.index, token);
  }
  // With noise a margin says little.
  const bool doubtful = options_.adaptive_draft && request.sampler.options().temperature == 0.0 &&
                        Margin(constrained, token) < kDoubt;
  scheduler_.Drafted(request.index, ends, doubtful);
}

void Engine::AfterVerify(Request& request, std::span<const float> logits) {
  const auto vocabulary = static_cast<std::size_t>(model_.params().vocabulary);
  const std::size_t rows = request.drafted.size() + 1;
  const int first_position = request.position();
  const std::vector<TokenId> sampled =
      request.sampler.Verify(Constrained(request, logits), Position{first_position},
                             request.result.tokens, request.drafted);
  const std::size_t accepted = sampled.size() - 1;
  const std::size_t before = request.result.tokens.size();
  for (std::size_t i = 0; i <= accepted && !request.finished; ++i) {
    Emit(request, sampled[i], logits.subspan(i * vocabulary, vocabulary));
  }
  request.result.rounds += 1;
  request.result.accepted_tokens += static_cast<int>(accepted);
  drafted_ += static_cast<std::int64_t>(request.drafted.size());
  accepted_ += static_cast<std::int64_t>(accepted);

  // The full cache keeps the rows whose tokens were right.
  const int kept = static_cast<int>(accepted) + 1;
  request.full->Truncate(static_cast<int>(rows) - kept);
  if (!request.grammars.empty()) {
    request.grammars.erase(request.grammars.begin() + 1, request.grammars.end());
  }
  request.result.full_cache = std::max(request.result.full_cache, request.full->peak_bytes());
  scheduler_.Verified(request.index, static_cast<int>(accepted));
  if (!request.finished) {
    Repair(request, first_position, kept);
    if (Moves(request)) {
      MoveOut(request, /*at_once=*/true);
    }
  }
  Tell(request, before);
  if (request.finished) {
    Finish(request);
  }
}

// The compressed cache goes back to where the round began and takes the verified rows over, as the
// verify computed them; or it is made anew.
void Engine::Repair(Request& request, int first_position, int kept) {
  const bool drafted = !request.drafted.empty();
  request.compressed->Truncate(static_cast<int>(request.drafted.size()));
  request.drafted.clear();
  if (drafted && compressor_.refreshes()) {
    request.result.compressed_cache =
        std::max(request.result.compressed_cache, request.compressed->peak_bytes());
    request.compressed.reset();  // its memory is what the new one is made in
    request.compressed.emplace(Refresh(compressor_, request.refresh,
                                       {.full = *request.full,
                                        .taps = request.taps.get(),
                                        .positions = first_position + kept,
                                        .heads = model_.params().heads},
                                       KeepOf(options_, request.prompt_size()), fast_pool_));
    return;
  }
  Check(request.compressed->AppendTail(*request.full, first_position, kept) &&
            request.compressed->Pack(compressor_.residual),
        "memory was reserved at admission");
}

}  // namespace vericache
