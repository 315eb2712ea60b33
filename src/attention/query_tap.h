#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/types.h"

namespace vericache {

// Records the queries (after RoPE, unscaled) of the last positions of a prompt, in every layer:
// what attention-based token scorers look at.
class QueryTap {
 public:
  // Records positions [first, first + window).
  QueryTap(int layers, int heads, int head_dim, Position first, int window)
      : first_(Raw(first)),
        window_(window),
        row_(static_cast<std::size_t>(heads) * static_cast<std::size_t>(head_dim)),
        data_(static_cast<std::size_t>(layers) * static_cast<std::size_t>(window) * row_) {}

  bool Wants(int position) const { return position >= first_ && position < first_ + window_; }
  int window() const { return window_; }

  // The queries of one position: [head][head_dim].
  std::span<float> at(LayerId layer, int position) {
    return std::span(data_).subspan(Offset(layer, position - first_), row_);
  }
  // The queries of window row `i`, 0 the oldest: [head][head_dim].
  std::span<const float> row(LayerId layer, int i) const {
    return std::span(data_).subspan(Offset(layer, i), row_);
  }

 private:
  std::size_t Offset(LayerId layer, int i) const {
    return (static_cast<std::size_t>(Raw(layer)) * static_cast<std::size_t>(window_) +
            static_cast<std::size_t>(i)) *
           row_;
  }

  int first_;
  int window_;
  std::size_t row_;
  std::vector<float> data_;
};

}  // namespace vericache
