// How well compressed caches draft: against what the full cache says after a prompt, each is judged
// in rounds as the engine runs them, without running the full cache again.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "attention/taps.h"
#include "compressor/compressor.h"
#include "kvcache/kv_cache.h"
#include "model/repeat.h"
#include "model/transformer.h"
#include "sampling/sampler.h"

namespace vericache {

struct EvaluationOptions {
  int new_tokens = 128;  // of the full cache's continuation, at most
  TapNeeds needs;        // of all scorers to be judged
  int prefill_chunk = 512;
  std::function<bool(TokenId)> is_end;
  RepeatPrompt repeat;  // for scorers that have the model repeat a prompt
};

// What drafts of one length came to.
struct RoundQuality {
  int draft_length = 0;
  int rounds = 0;
  int accepted = 0;

  // Accepted tokens of a round, on average; nullopt without rounds.
  std::optional<double> acceptance_length() const;
};

struct DraftQuality {
  Bytes compressed;  // of the prompt
  Bytes full;
  double compress_s = 0.0;  // repeating the prompt included, where a scorer asks for it
  double refresh_s = 0.0;   // of a round, on average; 0 where nothing is refreshed
  double hook_s = 0.0;      // see DraftEvaluation::HookSeconds; Judge leaves it
  // Of the tokens of the continuation: how often both caches' most likely token is the same, and
  // the mean of KL(full || compressed) in nats.
  double agreement = 0.0;
  double kl = 0.0;
  std::vector<RoundQuality> rounds;  // by draft length, as asked for

  double bytes_ratio() const {
    return static_cast<double>(compressed.count) / static_cast<double>(full.count);
  }
};

// How far a continuation repeats itself, and its prompt: the share of its tokens that lie in runs
// of kRun tokens which came before.
struct Repetition {
  static constexpr int kRun = 8;
  double of_itself = 0.0;
  double of_prompt = 0.0;
};

// One prompt and its continuation by the full cache, greedily.
class DraftEvaluation {
 public:
  // Computes both. `transformer` must outlive it. Throws as Transformer::Forward does, and
  // UserError where the prompt and the new tokens do not fit into the model's context.
  DraftEvaluation(Transformer& transformer, std::span<const TokenId> prompt,
                  const EvaluationOptions& options,
                  const std::function<void(int done, int total)>& on_progress = {});

  // Judges a compressor in rounds of each of the draft lengths. A round drafts on the compressed
  // cache, is cut at the first token that the full cache would not give, and ends by taking over
  // the full cache's rows of what was accepted and one more. Rounds that the end of the
  // continuation would cut short are not counted, however they end. Agreement and divergence are
  // those of the first draft length.
  DraftQuality Judge(const Compressor& compressor, double keep, std::span<const int> draft_lengths);

  // The mean divergence alone, in nats a token, from one pass over the continuation as a single
  // round.
  double Divergence(const Compressor& compressor, double keep);

  // What recording takes of each token of a prompt in each layer: the last tokens are computed
  // again, with and without what the scorer asks for. 0 where the scorer does not watch the text
  // while it is computed.
  double HookSeconds(const Compressor& compressor);

  const std::vector<TokenId>& continuation() const { return continuation_; }
  Repetition repetition() const;
  double prefill_s() const { return prefill_s_; }

 private:
  std::span<const float> Rows(KvCache& cache, std::span<const TokenId> tokens, int position,
                              int outputs, Taps* taps);
  PromptView View(int positions, std::span<const float> rotation = {}) const;
  KvCache MakeCompressed(const Compressor& compressor, double keep, RefreshState* state);
  void RunRounds(const Compressor& compressor, double keep, RefreshState state, KvCache cache,
                 RoundQuality& quality, DraftQuality* also);

  Transformer& transformer_;
  std::vector<TokenId> prompt_;
  std::vector<TokenId> continuation_;
  std::vector<float> logits_;  // [token of the continuation][vocabulary], those that gave it
  PagePool pool_;
  Taps taps_;
  KvCache full_;
  Sampler sampler_;
  double prefill_s_ = 0.0;
  double repeat_s_ = 0.0;
};

}  // namespace vericache
