// Runs of the engine, and the comparison that "lossless" means.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace vericache {

// More fast memory than any test needs.
inline constexpr Bytes kAmple{std::uint64_t{1} << 32U};

// `count` tokens that depend on the seed alone.
std::vector<TokenId> RandomTokens(int count, int vocabulary, unsigned seed);

// vericache with the given compressor, greedy, ample memory.
EngineOptions VeriCacheOptions(std::string compressor, double keep, int draft_length);

std::vector<Result> RunEngine(const Model& model, const EngineOptions& options,
                              std::vector<Prompt> prompts, EngineEvents events = {});

// What full-cache decoding gives: each prompt alone, in chunks of 512, on one thread.
std::vector<Result> RunFull(const Model& model, const std::vector<Prompt>& prompts,
                            const std::function<bool(TokenId)>& is_end = {});

// Empty where both emitted the same tokens for the same reason from bit-equal logits, in all
// requests; otherwise says what differs first.
std::string Difference(const std::vector<Result>& expected, const std::vector<Result>& actual);

// Drafted and accepted tokens of all requests.
struct Acceptance {
  int drafted = 0;
  int accepted = 0;
  double share() const { return drafted == 0 ? 0.0 : static_cast<double>(accepted) / drafted; }
};
Acceptance AcceptanceOf(const std::vector<Result>& results);

// The most fast memory that a request for this prompt takes, as the engine plans it.
Bytes FastMemoryNeed(const Model& model, const EngineOptions& options, const Prompt& prompt);

}  // namespace vericache
