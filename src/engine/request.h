#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/query_tap.h"
#include "base/types.h"
#include "engine/digest.h"
#include "kvcache/kv_cache.h"
#include "scheduler/plan.h"

namespace vericache {

struct Prompt {
  std::string id;
  std::vector<TokenId> tokens;
  int max_tokens = 0;  // to emit, at most
};

enum class FinishReason { kEnd, kLength };  // an end-of-text token; max_tokens or the context

// What a request gave, and at what cost.
struct Result {
  std::string id;
  std::vector<TokenId> tokens;  // emitted; an end-of-text token is the last of them
  FinishReason finish_reason = FinishReason::kLength;
  int prompt_tokens = 0;
  int rounds = 0;
  int drafted_tokens = 0;
  int accepted_tokens = 0;
  double prefill_s = 0.0;  // from its first chunk until it is ready to decode, compression included
  double decode_s = 0.0;   // from then on
  Bytes full_cache;        // the most that it held
  Bytes compressed_cache;  // likewise; 0 under `full`
  std::uint64_t logits_digest = 0;

  // Accepted draft tokens of a round, on average; 0 without rounds.
  double acceptance_length() const {
    return rounds == 0 ? 0.0 : static_cast<double>(accepted_tokens) / rounds;
  }
  double prefill_tokens_per_s() const { return Rate(prompt_tokens, prefill_s); }
  // Of the tokens after the first, which the prefill gave.
  double decode_tokens_per_s() const { return Rate(static_cast<int>(tokens.size()) - 1, decode_s); }

 private:
  static double Rate(int count, double seconds) {
    return count > 0 && seconds > 0.0 ? count / seconds : 0.0;
  }
};

// A request in the engine, from admission to its last token.
struct Request {
  using Clock = std::chrono::steady_clock;

  int index = 0;  // in the order of submission
  Prompt prompt;
  Bytes reserved_fast;   // at most this much of fast memory
  Bytes reserved_store;  // and of the full store
  Result result;
  std::optional<KvCache> full;
  std::optional<KvCache> compressed;
  std::unique_ptr<QueryTap> tap;
  int prefilled = 0;
  std::vector<TokenId> drafted;  // of the round under way
  bool draft_ended = false;
  bool finished = false;
  LogitsDigest digest;
  Clock::time_point started;
  Clock::time_point decoding_since;

  int prompt_size() const { return static_cast<int>(prompt.tokens.size()); }
  int emitted() const { return static_cast<int>(result.tokens.size()); }
  // Position of the next token to feed, the last emitted one.
  int position() const { return prompt_size() + emitted() - 1; }

  RequestView view() const {
    return {.prefill_left = prompt_size() - prefilled,
            .drafted = static_cast<int>(drafted.size()),
            .draft_ended = draft_ended,
            .remaining = prompt.max_tokens - emitted()};
  }
};

}  // namespace vericache
