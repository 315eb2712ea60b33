#include "support/engine_runs.h"

#include <algorithm>
#include <random>
#include <utility>

#include "engine/compressor_for.h"
#include "engine/memory_plan.h"

namespace vericache {

std::vector<TokenId> RandomTokens(int count, int vocabulary, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(
        TokenId{static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary))});
  }
  return tokens;
}

EngineOptions VeriCacheOptions(std::string compressor, double keep, int draft_length) {
  EngineOptions options;
  options.policy = Policy::kVeriCache;
  options.compressor = std::move(compressor);
  options.keep = keep;
  options.draft_length = draft_length;
  options.fast_memory = kAmple;
  return options;
}

std::vector<Result> RunEngine(const Model& model, const EngineOptions& options,
                              std::vector<Prompt> prompts, EngineEvents events) {
  Engine engine(model, options, std::move(events));
  return engine.Run(std::move(prompts));
}

std::vector<Result> RunFull(const Model& model, const std::vector<Prompt>& prompts,
                            const std::function<bool(TokenId)>& is_end) {
  EngineOptions options;
  options.policy = Policy::kFull;
  options.fast_memory = kAmple;
  options.is_end = is_end;
  std::vector<Result> results;
  for (const Prompt& prompt : prompts) {
    results.push_back(RunEngine(model, options, {prompt}).at(0));
  }
  return results;
}

std::string Difference(const std::vector<Result>& expected, const std::vector<Result>& actual) {
  if (expected.size() != actual.size()) {
    return "number of results";
  }
  for (std::size_t r = 0; r < expected.size(); ++r) {
    const Result& want = expected[r];
    const Result& have = actual[r];
    const std::string which = "request " + std::to_string(r) + ": ";
    const auto [w, h] = std::mismatch(want.tokens.begin(), want.tokens.end(), have.tokens.begin(),
                                      have.tokens.end());
    if (w != want.tokens.end() || h != have.tokens.end()) {
      return which + "token " + std::to_string(w - want.tokens.begin()) + " of " +
             std::to_string(want.tokens.size()) + " expected, " +
             std::to_string(have.tokens.size()) + " emitted";
    }
    if (want.logits_digest != have.logits_digest) {
      return which + "the tokens are equal, the logits are not";
    }
    if (want.finish_reason != have.finish_reason) {
      return which + "finish reason";
    }
    if (want.id != have.id || want.prompt_tokens != have.prompt_tokens) {
      return which + "belongs to another prompt";
    }
  }
  return "";
}

Acceptance AcceptanceOf(const std::vector<Result>& results) {
  Acceptance sum;
  for (const Result& result : results) {
    sum.drafted += result.drafted_tokens;
    sum.accepted += result.accepted_tokens;
  }
  return sum;
}

Bytes FastMemoryNeed(const Model& model, const EngineOptions& options, const Prompt& prompt) {
  const int size = static_cast<int>(prompt.tokens.size());
  const int new_tokens = std::min(prompt.max_tokens, model.params().context - size + 1);
  const CacheGeometry geometry = model.params().geometry();
  const Bytes caches =
      PlanCaches(geometry, {}, options, CompressorFor(options.compressor, model), size, new_tokens)
          .fast;
  if (!Reloads(options) || options.policy == Policy::kFull) {
    return caches;
  }
  // And its full cache, at its end or, where it is never verified, after the prefill.
  return caches +
         PlainCacheBytes(geometry, {}, Verifies(options.policy) ? size + new_tokens : size);
}

}  // namespace vericache
