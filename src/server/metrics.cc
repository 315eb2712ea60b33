#include "server/metrics.h"

#include <chrono>

#include "prometheus/text_serializer.h"

namespace vericache {
namespace {

using Bounds = prometheus::Histogram::BucketBoundaries;

Bounds Latencies() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500};
}

constexpr std::size_t kRecent = 20;

// Counters only go up; the engine's are sums.
void Raise(prometheus::Counter& counter, double sum) {
  if (sum > counter.Value()) {
    counter.Increment(sum - counter.Value());
  }
}

// As vLLM has them.
std::string NameOf(FinishReason reason) {
  return reason == FinishReason::kCancelled ? "abort" : std::string(Name(reason));
}

}  // namespace

prometheus::Counter& Metrics::AddCounter(const std::string& name, const std::string& help) {
  return prometheus::BuildCounter()
      .Name("vericache_" + name)
      .Help(help)
      .Register(registry_)
      .Add({});
}

prometheus::Gauge& Metrics::AddGauge(const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name("vericache_" + name).Help(help).Register(registry_).Add({});
}

prometheus::Histogram& Metrics::AddHistogram(const std::string& name, const std::string& help,
                                             const Bounds& bounds) {
  return prometheus::BuildHistogram()
      .Name("vericache_" + name)
      .Help(help)
      .Register(registry_)
      .Add({}, bounds);
}

Metrics::Metrics()
    : states_(),
      pages_(),
      ends_(prometheus::BuildCounter()
                .Name("vericache_request_success_total")
                .Help("Requests that ended, by how")
                .Register(registry_)),
      waiting_(&AddGauge("num_requests_waiting", "Requests that have not begun")),
      running_(&AddGauge("num_requests_running", "Requests that have begun")),
      budget_(&AddGauge("fast_memory_budget_bytes", "Fast memory for pages")),
      refused_(&AddCounter("requests_refused_total", "Requests that found the queue full")),
      prompt_tokens_(&AddCounter("prompt_tokens_total", "Tokens of prompts")),
      reused_tokens_(&AddCounter("prefix_cache_hits_total",
                                 "Tokens of prompts that were kept from earlier ones")),
      generated_tokens_(&AddCounter("generation_tokens_total", "Tokens that were emitted")),
      drafted_tokens_(&AddCounter("spec_decode_num_draft_tokens_total",
                                  "Tokens drafted in rounds that were verified")),
      accepted_tokens_(
          &AddCounter("spec_decode_num_accepted_tokens_total", "Of these, those accepted")),
      iterations_(&AddCounter("iterations_total", "Iterations of the engine")),
      rounds_counted_(&AddCounter("spec_decode_num_drafts_total", "Rounds that were verified")),
      reloads_(&AddCounter("reloads_total", "Full caches brought over the link")),
      late_reloads_(&AddCounter("late_reloads_total", "Of these, those that came late")),
      link_busy_(&AddCounter("link_busy_seconds_total", "Time that the link was busy")),
      first_token_(&AddHistogram("time_to_first_token_seconds",
                                 "From when a request came to its first token", Latencies())),
      inter_token_(&AddHistogram("inter_token_latency_seconds",
                                 "Between tokens; those of a round share its time", Latencies())),
      queue_(&AddHistogram("request_queue_time_seconds",
                           "From when a request came until its prompt began", Latencies())),
      end_to_end_(&AddHistogram("e2e_request_latency_seconds",
                                "From when a request came to its last token", Latencies())),
      acceptance_(&AddHistogram("request_acceptance_length",
                                "Accepted draft tokens of a round, mean of a request",
                                {0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 64})),
      rounds_(&AddHistogram("request_rounds", "Rounds of a request",
                            {0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000})) {
  auto& states = prometheus::BuildGauge()
                     .Name("vericache_num_requests")
                     .Help("Requests by state")
                     .Register(registry_);
  std::size_t i = 0;
  for (const char* state : {"waiting", "prefilling", "decoding", "away", "leaving"}) {
    states_[i++] = &states.Add({{"state", state}});
  }
  auto& pages = prometheus::BuildGauge()
                    .Name("vericache_cache_bytes")
                    .Help(
                        "Pages: resident and transient ones in fast memory, "
                        "those of full caches "
                        "that are read in place outside")
                    .Register(registry_);
  i = 0;
  for (const char* kind : {"resident", "transient", "in_place"}) {
    pages_[i++] = &pages.Add({{"kind", kind}});
  }
  for (const FinishReason reason : {FinishReason::kEnd, FinishReason::kLength, FinishReason::kError,
                                    FinishReason::kCancelled}) {
    ends_.Add({{"finished_reason", NameOf(reason)}});
  }
}

std::string Metrics::Text() { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

void Metrics::FirstToken(double seconds) {
  generated_tokens_->Increment();
  first_token_->Observe(seconds);
}

void Metrics::MoreTokens(int tokens, double seconds) {
  generated_tokens_->Increment(tokens);
  for (int i = 0; i < tokens; ++i) {
    inter_token_->Observe(seconds / tokens);
  }
}

void Metrics::Finished(const Result& result, double queued_s, double seconds) {
  ends_.Add({{"finished_reason", NameOf(result.finish_reason)}}).Increment();
  prompt_tokens_->Increment(result.prompt_tokens);
  reused_tokens_->Increment(result.reused_tokens);
  queue_->Observe(queued_s);
  end_to_end_->Observe(seconds);
  if (result.rounds > 0) {
    acceptance_->Observe(result.acceptance_length());
    rounds_->Observe(result.rounds);
  }
  const std::lock_guard lock(mutex_);
  recent_.push_front({.ended = std::chrono::duration_cast<std::chrono::seconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count(),
                      .prompt_tokens = result.prompt_tokens,
                      .tokens = static_cast<int>(result.tokens.size()),
                      .rounds = result.rounds,
                      .acceptance_length = result.acceptance_length(),
                      .tokens_per_s = result.decode_tokens_per_s(),
                      .finish_reason = NameOf(result.finish_reason)});
  if (recent_.size() > kRecent) {
    recent_.pop_back();
  }
}

std::vector<AnswerSummary> Metrics::recent() const {
  const std::lock_guard lock(mutex_);
  return {recent_.begin(), recent_.end()};
}

void Metrics::Show(const EngineState& state, const EngineCounts& counts, double link_busy_s) {
  const RequestStates& requests = state.requests;
  std::size_t i = 0;
  for (const int count : {requests.waiting, requests.prefilling, requests.decoding, requests.away,
                          requests.leaving}) {
    states_[i++]->Set(count);
  }
  waiting_->Set(requests.waiting);
  running_->Set(requests.prefilling + requests.decoding + requests.away + requests.leaving);
  i = 0;
  for (const Bytes bytes : {state.resident, state.transient, state.in_place}) {
    pages_[i++]->Set(static_cast<double>(bytes.count));
  }
  budget_->Set(static_cast<double>(state.budget.count));
  Raise(*iterations_, static_cast<double>(counts.iterations));
  Raise(*rounds_counted_, static_cast<double>(counts.rounds));
  Raise(*drafted_tokens_, static_cast<double>(counts.drafted));
  Raise(*accepted_tokens_, static_cast<double>(counts.accepted));
  Raise(*reloads_, static_cast<double>(counts.reloads));
  Raise(*late_reloads_, static_cast<double>(counts.late_reloads));
  Raise(*link_busy_, link_busy_s);
}

}  // namespace vericache
