// Requests in, tokens out: the loop that plans an iteration, runs it as one graph and hands out
// what was verified.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compressor/compressor.h"
#include "engine/engine_options.h"
#include "engine/full_caches.h"
#include "engine/prefixes.h"
#include "engine/request.h"
#include "model/transformer.h"
#include "scheduler/scheduler.h"

namespace vericache {

// What a caller may watch. Each may be empty. `index` counts requests in the order of submission.
struct EngineEvents {
  std::function<void(int index, int done, int total)> on_prefill;
  // The request's compressed cache was made. It may be altered: nothing that is emitted depends on
  // it, except under the policy lossy.
  std::function<void(int index, KvCache& cache)> on_compressed;
  // Verified tokens (under lossy: drafted ones).
  std::function<void(int index, std::span<const TokenId> tokens)> on_tokens;
  // A token more was drafted; those of a round are void once it is verified.
  std::function<void(int index, TokenId token)> on_drafted;
  std::function<void(int index, const Result& result)> on_finish;
};

// What the engine did so far.
struct EngineCounts {
  std::int64_t iterations = 0;
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;   // tokens, of the rounds that were verified
  std::int64_t accepted = 0;  // of those
  std::int64_t reloads = 0;
  std::int64_t late_reloads = 0;
};

// Where the time of an engine's iterations went, in seconds; their sum is all of it.
struct TimeSplit {
  double prefill_attention = 0.0;
  double full_attention = 0.0;  // of verifies and of decoding on full caches
  double draft_attention = 0.0;
  double rest_of_graph = 0.0;  // weight products for the most part
  double after = 0.0;          // sampling, verifying, compressing, taking rows over
  double waiting = 0.0;        // for the link, with nothing to compute
};

// What the engine holds now.
struct EngineState {
  RequestStates requests;
  Bytes resident;   // pages in fast memory for as long as their requests run
  Bytes transient;  // and around a verify
  Bytes in_place;   // of full caches that are read where they lie, outside fast memory
  Bytes budget;     // of fast memory, for pages
};

class Engine {
 public:
  // `model` must outlive it. Throws UserError for options out of range.
  Engine(const Model& model, EngineOptions options, EngineEvents events = {});

  // Throws UserError where the prompt is empty, has tokens that the model does not know or more
  // than its context, an option of it is out of range, or its caches can never fit into memory.
  // From any thread.
  void Validate(const Prompt& prompt) const { NeedOf(prompt); }

  // Queues a request; returns its index. Throws as Validate does, and then queues nothing.
  int Submit(Prompt prompt);

  // Ends a request, wherever it is, between two Steps: on_finish says kCancelled, and what it holds
  // is given back at once, or when the link has let go of it. False where it has ended already.
  bool Cancel(int index);

  // Runs one iteration. False where nothing is left to do. Throws Interrupted where `stop` said so.
  bool Step();

  // Submits all prompts and runs them to their ends; results are in the order of the prompts.
  std::vector<Result> Run(std::vector<Prompt> prompts);

  // Asked often, from several threads; where it says yes, Step throws Interrupted.
  void SetStop(std::function<bool()> stop);

  // Asked while a Step waits for the link; where it says yes, that Step returns.
  void SetNews(std::function<bool()> news) { news_ = std::move(news); }

  const Model& model() const { return model_; }
  const EngineOptions& options() const { return options_; }
  EngineState state() const {
    return {.requests = scheduler_.states(),
            .resident = fast_pool_.in_use(PageKind::kResident),
            .transient = fast_pool_.in_use(PageKind::kTransient),
            .in_place = store_pool_.in_use(),
            .budget = fast_pool_.budget()};
  }

  // The most bytes of caches that were in fast memory at once.
  Bytes fast_memory_peak() const { return fast_pool_.peak(); }
  EngineCounts counts() const {
    const SchedulerCounts& scheduled = scheduler_.counts();
    return {.iterations = iterations_,
            .rounds = scheduled.rounds,
            .drafted = drafted_,
            .accepted = accepted_,
            .reloads = scheduled.reloads,
            .late_reloads = scheduled.late_reloads};
  }
  // Of all iterations so far.
  TimeSplit time_split() const;
  // How long the link was busy.
  double link_busy_seconds() const { return link_ ? link_->busy_seconds() : 0.0; }

 private:
  RequestNeed NeedOf(const Prompt& prompt) const;
  TapNeeds NeededTaps() const;
  int LeastComputed() const;
  void Begin(Request& request);
  void CollectMoves();
  void CollectPrefix(Request& request);
  void TakePrefix(Request& request);
  PageKind KindOfFull(const Request& request) const;
  bool Moves(const Request& request) const;
  void StartReload(Request& request);
  void MoveOut(Request& request, bool at_once);
  void PrepareRows(const RowGroup& group, Request& request);
  void Compute(std::span<const RowGroup> plan);
  void Finish(Request& request);
  void Sweep();
  void Emit(Request& request, TokenId token, std::span<const float> logits);
  void Tell(const Request& request, std::size_t from) const;
  std::span<const float> Constrained(const Request& request, std::span<const float> logits);

  void AfterPrefill(Request& request, const RowGroup& group, std::span<const float> logits);
  void AfterDecode(Request& request, std::span<const float> logits);
  void AfterDraft(Request& request, std::span<const float> logits);
  void AfterVerify(Request& request, std::span<const float> logits);
  void MakeCompressed(Request& request);
  void Repair(Request& request, int first_position, int kept);

  const Model& model_;
  EngineOptions options_;
  EngineEvents events_;
  Compressor compressor_;
  KvFormat full_format_;
  Transformer transformer_;
  Bytes memory_limit_;  // for all caches
  PagePool fast_pool_;
  PagePool store_pool_;  // full caches that are read in place, outside fast memory
  std::function<bool()> stop_;
  std::function<bool()> news_;
  Scheduler scheduler_;
  // By index, until they have ended and the link has let go of them.
  std::map<int, std::unique_ptr<Request>> requests_;
  std::vector<Result> results_;  // of the Run under way, from this index on
  int results_from_ = 0;
  int submitted_ = 0;
  std::int64_t iterations_ = 0;
  std::int64_t drafted_ = 0;
  std::int64_t accepted_ = 0;
  double forward_s_ = 0.0;
  double after_s_ = 0.0;
  double waiting_s_ = 0.0;

  // The rows of the iteration under way; kept to reuse their memory.
  std::vector<TokenId> row_tokens_;
  std::vector<Position> row_positions_;
  std::vector<int> row_outputs_;
  std::vector<AttentionTask> tasks_;
  std::vector<float> constrained_;  // logits

  // Empty where nothing is moved or kept. The link is last, so that it stops before what it moves
  // goes.
  std::optional<FullCaches> moves_;
  std::optional<Prefixes> prefixes_;
  std::unique_ptr<Link> link_;
};

}  // namespace vericache
