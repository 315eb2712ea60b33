// What token scorers look at while a prompt is computed.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "attention/hidden_taps.h"
#include "attention/key_attention.h"
#include "attention/query_statistics.h"
#include "attention/query_tap.h"

namespace vericache {

// What a scorer asks for; nothing of it costs anything where nobody asks.
struct TapNeeds {
  int query_window = 0;           // the queries, after RoPE, of so many last positions
  bool query_statistics = false;  // mean and covariance of all queries before RoPE
  bool attention_sums = false;    // the attention that each key gets of all queries
  // The largest attention that each key gets while the model repeats the text, in chunks of so many
  // tokens; 0: it does not.
  int repeated_chunk = 0;
  int verified_window = 0;  // after a verify, the queries of so many last positions
  // What it says of every position, those of verifies included; nullptr: nothing.
  std::shared_ptr<const ScorePredictor> predictor = nullptr;

  bool any() const {
    return query_window > 0 || query_statistics || attention_sums || repeated_chunk > 0 ||
           verified_window > 0 || predictor;
  }
  // Last positions of a prompt that are computed even where their keys and values are kept from an
  // earlier one.
  int least_computed() const {
    if (predictor) {
      return std::numeric_limits<int>::max();
    }
    return std::max(
        {query_window, verified_window, query_statistics || attention_sums ? kStatisticsRows : 0});
  }
  // Rows that make statistics, or sums, of a prompt whose beginning is kept.
  static constexpr int kStatisticsRows = 256;
};

// What two scorers ask for together.
inline TapNeeds operator|(const TapNeeds& a, const TapNeeds& b) {
  return {.query_window = std::max(a.query_window, b.query_window),
          .query_statistics = a.query_statistics || b.query_statistics,
          .attention_sums = a.attention_sums || b.attention_sums,
          .repeated_chunk = std::max(a.repeated_chunk, b.repeated_chunk),
          .verified_window = std::max(a.verified_window, b.verified_window),
          .predictor = a.predictor ? a.predictor : b.predictor};
}

// What was recorded of a prompt of `positions` positions, and of `verified` rows, at most, beyond
// the last position known to be right.
struct Taps {
  Taps() = default;
  Taps(const TapNeeds& needs, const CacheGeometry& geometry, int heads, int positions, int threads,
       int verified = 0) {
    const int window = std::min(std::max(needs.query_window, needs.verified_window), positions);
    if (window > 0) {
      const int more = needs.verified_window > 0 ? needs.verified_window + verified : 0;
      queries.emplace(geometry.layers, heads, geometry.head_dim, Position{positions - window},
                      window + more);
    }
    if (needs.query_statistics) {
      statistics.emplace(geometry.layers, heads, geometry.head_dim);
    }
    if (needs.attention_sums) {
      attention.emplace(geometry, heads, positions, KeyAttention::Over::kSum, threads);
    }
    if (needs.predictor) {
      predicted.emplace(needs.predictor, geometry);
    }
  }

  // From then on only queries and predicted scores are recorded.
  bool prompt_is_done = false;

  std::optional<QueryTap> queries;
  std::optional<QueryStatistics> statistics;
  std::optional<KeyAttention> attention;  // of the prompt's rows
  std::optional<KeyAttention> repeated;   // see model/repeat.h
  std::optional<PredictedScores> predicted;
  std::optional<HiddenStates> hidden;  // no scorer's: for training
};

}  // namespace vericache
