// Attention in float64 over what a cache's formats define, and how far a float32 kernel may be off.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "attention/kernel.h"
#include "kvcache/kv_cache.h"
#include "unit_support/random_data.h"

namespace vericache::testing {

// Result of one query, and the bound of a float32 computation's error in each number of it.
struct OracleResult {
  std::vector<double> out;
  double bound = 0.0;
};

// Keys and values of one head that a query may see, dequantized.
class VisibleRows {
 public:
  explicit VisibleRows(int head_dim) : dim_(Size(head_dim)) {}

  // Adds slots [begin, end) of `segment`.
  void Add(const SegmentView& segment, int head, int begin, int end) {
    std::vector<float> row(dim_);
    for (int slot = begin; slot < end; ++slot) {
      const std::byte* page = segment.pages[Size(slot / kPageSlots)];
      ReadKey(*segment.layout, page, head, slot % kPageSlots, row);
      keys_.insert(keys_.end(), row.begin(), row.end());
      ReadValue(*segment.layout, page, head, slot % kPageSlots, row);
      values_.insert(values_.end(), row.begin(), row.end());
    }
  }

  // softmax(query . key) value; the query is already scaled.
  //
  // The bound: each score is a sum of head_dim products, in any order, fused or not, of a query and
  // a key that may itself be a product and a sum (KIVI) of numbers up to the channel's largest; so
  // it errs by at most d = 2 (head_dim + 4) u sum |q_c| max_s |k_sc|, u = 2^-24. All weights are
  // then off by a factor within exp(+-(2d + 8u)), exp's own error and the merges' included, and
  // sums of n terms by n u more, relative to the largest value.
  OracleResult Attend(std::span<const float> query) const {
    constexpr double kUnit = 0x1p-24;
    const std::size_t count = keys_.size() / dim_;
    OracleResult result{.out = std::vector<double>(dim_)};
    std::vector<double> scores(count);
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < count; ++s) {
      for (std::size_t c = 0; c < dim_; ++c) {
        scores[s] += static_cast<double>(query[c]) * static_cast<double>(keys_[s * dim_ + c]);
      }
      most = std::max(most, scores[s]);
    }
    double sum = 0.0;
    double largest_value = 0.0;
    for (std::size_t s = 0; s < count; ++s) {
      const double weight = std::exp(scores[s] - most);
      sum += weight;
      for (std::size_t c = 0; c < dim_; ++c) {
        const auto value = static_cast<double>(values_[s * dim_ + c]);
        result.out[c] += weight * value;
        largest_value = std::max(largest_value, std::abs(value));
      }
    }
    double magnitude = 0.0;
    for (std::size_t c = 0; c < dim_; ++c) {
      result.out[c] /= sum;
      double largest_key = 0.0;
      for (std::size_t s = 0; s < count; ++s) {
        largest_key = std::max(largest_key, std::abs(static_cast<double>(keys_[s * dim_ + c])));
      }
      magnitude += std::abs(static_cast<double>(query[c])) * largest_key;
    }
    const double score_error = 2.0 * static_cast<double>(dim_ + 4) * kUnit * magnitude;
    const double factor =
        std::expm1(2.0 * score_error + (8.0 + static_cast<double>(count)) * kUnit);
    result.bound = 2.0 * factor * largest_value + 1e-30;
    return result;
  }

 private:
  std::size_t dim_;
  std::vector<float> keys_;
  std::vector<float> values_;
};

// A Partial with its own memory, empty as before the first merge.
struct OwnedPartial {
  OwnedPartial(int queries, int head_dim)
      : max(Size(queries), -std::numeric_limits<float>::infinity()),
        sum(Size(queries)),
        out(Size(queries * head_dim)) {}
  Partial view() { return {.max = max, .sum = sum, .out = out}; }

  std::vector<float> max, sum, out;
};

}  // namespace vericache::testing
