// What the server measures, for Prometheus; names follow vLLM's where it has
// one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace vericache {

// An answer that has ended, for people who watch.
struct AnswerSummary {
  std::int64_t ended = 0;  // seconds since 1970
  int prompt_tokens = 0;
  int tokens = 0;
  int rounds = 0;
  double acceptance_length = 0.0;
  double tokens_per_s = 0.0;
  std::string finish_reason;
};

class Metrics {
 public:
  Metrics();

  // All of it in Prometheus' text format. From any thread, as is all below.
  std::string Text();

  void Refused() { refused_->Increment(); }
  void FirstToken(double seconds);
  // `tokens` came together, so long after those before them.
  void MoreTokens(int tokens, double seconds);
  // `queued_s`: until its prompt began; `seconds`: from when it came until now.
  void Finished(const Result& result, double queued_s, double seconds);
  // The latest ones, the last first.
  std::vector<AnswerSummary> recent() const;
  // Of the engine, as it is now.
  void Show(const EngineState& state, const EngineCounts& counts, double link_busy_s);

 private:
  prometheus::Counter& AddCounter(const std::string& name, const std::string& help);
  prometheus::Gauge& AddGauge(const std::string& name, const std::string& help);
  prometheus::Histogram& AddHistogram(const std::string& name, const std::string& help,
                                      const prometheus::Histogram::BucketBoundaries& bounds);

  mutable std::mutex mutex_;  // of recent_
  std::deque<AnswerSummary> recent_;
  prometheus::Registry registry_;
  std::array<prometheus::Gauge*, 5> states_;  // in the order of RequestStates
  std::array<prometheus::Gauge*, 3> pages_;   // resident, transient, in_place
  prometheus::Family<prometheus::Counter>& ends_;
  prometheus::Gauge* waiting_;
  prometheus::Gauge* running_;
  prometheus::Gauge* budget_;
  prometheus::Counter* refused_;
  prometheus::Counter* prompt_tokens_;
  prometheus::Counter* reused_tokens_;
  prometheus::Counter* generated_tokens_;
  prometheus::Counter* drafted_tokens_;
  prometheus::Counter* accepted_tokens_;
  prometheus::Counter* iterations_;
  prometheus::Counter* rounds_counted_;
  prometheus::Counter* reloads_;
  prometheus::Counter* late_reloads_;
  prometheus::Counter* link_busy_;
  prometheus::Histogram* first_token_;
  prometheus::Histogram* inter_token_;
  prometheus::Histogram* queue_;
  prometheus::Histogram* end_to_end_;
  prometheus::Histogram* acceptance_;
  prometheus::Histogram* rounds_;
};

}  // namespace vericache
