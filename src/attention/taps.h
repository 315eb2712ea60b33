// What token scorers look at while a prompt is computed.
#pragma once

#include <algorithm>
#include <optional>

#include "attention/query_statistics.h"
#include "attention/query_tap.h"

namespace vericache {

// What a scorer asks for; nothing of it costs anything where nobody asks.
struct TapNeeds {
  int query_window = 0;           // the queries, after RoPE, of so many last positions
  bool query_statistics = false;  // mean and covariance of all queries before RoPE

  bool any() const { return query_window > 0 || query_statistics; }
  // Last positions of a prompt that are computed even where their keys and values are kept from an
  // earlier one.
  int least_computed() const {
    return std::max(query_window, query_statistics ? kStatisticsRows : 0);
  }
  // Rows that make statistics of a prompt whose beginning is kept.
  static constexpr int kStatisticsRows = 256;
};

// What two scorers ask for together.
inline TapNeeds operator|(const TapNeeds& a, const TapNeeds& b) {
  return {.query_window = std::max(a.query_window, b.query_window),
          .query_statistics = a.query_statistics || b.query_statistics};
}

// What was recorded of a prompt of `positions` positions.
struct Taps {
  Taps() = default;
  Taps(const TapNeeds& needs, int layers, int heads, int head_dim, int positions) {
    if (const int window = std::min(needs.query_window, positions); window > 0) {
      queries.emplace(layers, heads, head_dim, Position{positions - window}, window);
    }
    if (needs.query_statistics) {
      statistics.emplace(layers, heads, head_dim);
    }
  }

  std::optional<QueryTap> queries;
  std::optional<QueryStatistics> statistics;
};

}  // namespace vericache
