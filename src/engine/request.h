#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/taps.h"
#include "base/clock.h"
#include "base/types.h"
#include "compressor/compressor.h"
#include "engine/digest.h"
#include "kvcache/kv_cache.h"
#include "model/grammar.h"
#include "sampling/round_sampler.h"
#include "store/full_store.h"
#include "store/link.h"
#include "store/prefix_store.h"

namespace vericache {

// A token that is emitted now, and the logits that gave it.
struct EmittedToken {
  TokenId token{};
  std::span<const float> logits;
};

struct Prompt {
  std::string id;
  std::vector<TokenId> tokens;
  int max_tokens = 0;  // to emit, at most
  SamplingOptions sampling;
  // Drafted in a round, at most, where that is less than the engine's; 0: each token is computed
  // on the full cache. Nothing under `full` and `lossy`.
  std::optional<int> draft_length;
  // Where there is one: what the text must be. It is copied.
  std::shared_ptr<const Grammar> grammar;
  // Where there is one: called once for each token as it is emitted, in order. True ends the text
  // with that token, as a stop string does.
  std::function<bool(const EmittedToken& emitted)> ends;
};

// An end-of-text token; Prompt::ends; max_tokens or the context; the full store failed; Cancel.
enum class FinishReason { kEnd, kStop, kLength, kError, kCancelled };

// "stop" for the first two, "length", "error", "cancelled".
std::string_view Name(FinishReason reason);

// What a request gave, and at what cost.
struct Result {
  std::string id;
  std::vector<TokenId> tokens;  // emitted; an end-of-text token is the last of them
  FinishReason finish_reason = FinishReason::kLength;
  std::string error;  // where it ended by one; the tokens until then are verified all the same
  int prompt_tokens = 0;
  SamplingOptions sampling;
  int rounds = 0;
  int drafted_tokens = 0;
  int accepted_tokens = 0;
  int reloads = 0;                 // of its full cache over the link
  int reused_tokens = 0;           // of the prompt, whose cache was kept from an earlier one
  bool reused_compressed = false;  // so was all of its compressed cache
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
  int index = 0;  // in the order of submission
  Prompt prompt;
  RoundSampler sampler;
  Result result;
  std::optional<KvCache> full;
  std::optional<KvCache> compressed;
  std::unique_ptr<Taps> taps;
  RefreshState refresh;
  int prefilled = 0;
  std::vector<TokenId> drafted;  // of the round under way
  // Of the text so far, and with each drafted token more; none where the text is free.
  std::vector<Grammar> grammars;
  bool finished = false;
  // Of the full cache in the store, where it does not stay in memory that a verify can read.
  std::unique_ptr<StoredCache> stored;
  bool leaving = false;  // the full cache leaves fast memory when its save has ended
  int saved_slots = 0;   // that the store has, or will have then
  std::shared_ptr<Transfer> save;
  std::shared_ptr<Transfer> reload;
  std::vector<std::byte> rows_to_save;
  // Of the prompt's beginning, where prefixes are kept.
  std::vector<PrefixKey> prefix_keys;
  std::shared_ptr<Transfer> prefix;
  std::shared_ptr<const std::vector<std::byte>> compressed_bytes;  // as KvCache::Restore takes them
  int prefix_tokens = 0;                                           // brought, or being brought
  int shared_tokens = 0;  // of these, in pages of other requests

  bool moving() const { return save || reload || prefix; }
  LogitsDigest digest;
  Clock::time_point started;
  Clock::time_point decoding_since;

  int prompt_size() const { return static_cast<int>(prompt.tokens.size()); }
  int emitted() const { return static_cast<int>(result.tokens.size()); }
  // Position of the next token to feed, the last emitted one.
  int position() const { return prompt_size() + emitted() - 1; }
  // Slots that the full cache holds between rounds.
  int full_slots() const { return position(); }
};

}  // namespace vericache
