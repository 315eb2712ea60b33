#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/types.h"

namespace vericache {

// Mean and covariance of a prompt's queries before RoPE, per layer and query head.
class QueryStatistics {
 public:
  // The first positions draw attention as sinks and have unusual states: they are left out, as
  // kvpress does (ExpectedAttentionPress.n_sink).
  static constexpr int kSkipped = 4;

  // `head_dim` is a multiple of 16.
  QueryStatistics(int layers, int heads, int head_dim);

  // Adds the queries of `rows` consecutive positions from `first_position` on,
  // [row][head][head_dim]. Each of `threads` threads calls it and adds its share of the heads.
  void Add(LayerId layer, int first_position, int rows, const float* queries, int thread,
           int threads);

  // Positions added.
  int count(LayerId layer) const { return at(layer, 0).count; }
  // [head_dim]; zeros where no position was added.
  std::vector<float> Mean(LayerId layer, int head) const;
  // [head_dim][head_dim], divided by the count; zeros where no position was added.
  std::vector<float> Covariance(LayerId layer, int head) const;

 private:
  // Sums are of differences from the first query, which keeps them small where the mean is large.
  struct Head {
    int count = 0;
    std::vector<float> first;     // [head_dim]
    std::vector<float> sum;       // [head_dim]
    std::vector<float> products;  // [head_dim][head_dim], from each row's block of 16 on
  };

  Head& at(LayerId layer, int head) {
    return heads_by_layer_[static_cast<std::size_t>(Raw(layer) * heads_ + head)];
  }
  const Head& at(LayerId layer, int head) const {
    return heads_by_layer_[static_cast<std::size_t>(Raw(layer) * heads_ + head)];
  }

  int heads_;
  int head_dim_;
  std::vector<Head> heads_by_layer_;
};

}  // namespace vericache
