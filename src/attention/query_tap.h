#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/types.h"

namespace vericache {

// Records the queries (after RoPE, unscaled) of the last positions of a text, in every layer: what
// attention-based token scorers look at.
class QueryTap {
 public:
  // Records positions from `first` on; of these the newest `size` are held.
  QueryTap(int layers, int heads, int head_dim, Position first, int size)
      : first_(Raw(first)),
        size_(size),
        row_(static_cast<std::size_t>(heads) * static_cast<std::size_t>(head_dim)),
        data_(static_cast<std::size_t>(layers) * static_cast<std::size_t>(size) * row_) {}

  bool Wants(int position) const { return position >= first_; }
  int first() const { return first_; }

  // The queries of one position: [head][head_dim].
  std::span<float> at(LayerId layer, int position) {
    return std::span(data_).subspan(Offset(layer, position), row_);
  }
  std::span<const float> at(LayerId layer, int position) const {
    return std::span(data_).subspan(Offset(layer, position), row_);
  }

 private:
  std::size_t Offset(LayerId layer, int position) const {
    return (static_cast<std::size_t>(Raw(layer)) * static_cast<std::size_t>(size_) +
            static_cast<std::size_t>(position % size_)) *
           row_;
  }

  int first_;
  int size_;
  std::size_t row_;
  std::vector<float> data_;
};

}  // namespace vericache
