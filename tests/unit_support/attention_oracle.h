// Attention in float64 over what a cache's formats define, and how far a float32 kernel may be off.
// Its rotation is another one than kvcache/rotation.h: the matrix itself, in float64.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attention/kernel.h"
#include "kvcache/kv_cache.h"
#include "unit_support/random_data.h"

namespace vericache::testing {

// The rotated formats' rotation back, by the matrix: entry (i, j) of a Walsh-Hadamard matrix is -1
// where i and j share an odd number of ones.
inline std::vector<double> RotatedBack(std::span<const float> row) {
  constexpr std::uint64_t kSigns[] = {0x243F6A8885A308D3U, 0x13198A2E03707344U, 0xA4093822299F31D0U,
                                      0x082EFA98EC4E6C89U};
  const std::size_t size = row.size() & -row.size();
  std::vector<double> back(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      const bool minus = std::popcount(i % size & j) % 2 == 1;
      back[i] += (minus ? -1.0 : 1.0) * static_cast<double>(row[i / size * size + j]);
    }
    const bool flipped = (kSigns[i / 64 % 4] >> (i % 64) & 1U) != 0;
    back[i] *= (flipped ? -1.0 : 1.0) / std::sqrt(static_cast<double>(size));
  }
  return back;
}

// Result of one query, and the bound of a float32 computation's error in each number of it.
struct OracleResult {
  std::vector<double> out;
  double bound = 0.0;
};

// Keys and values of one head that a query may see, dequantized.
class VisibleRows {
 public:
  // As the formats hold them, which kernels see; or rotated back, as attention is.
  explicit VisibleRows(int head_dim, bool rotated_back = false)
      : dim_(Size(head_dim)), rotated_back_(rotated_back) {}

  // Adds slots [begin, end) of `segment`.
  void Add(const SegmentView& segment, int head, int begin, int end) {
    std::vector<float> row(dim_);
    for (int slot = begin; slot < end; ++slot) {
      KeyAt(segment, head, slot, row);
      Append(row, segment.layout->rotated_keys(), keys_);
      ValueAt(segment, head, slot, row);
      Append(row, segment.layout->rotated_values(), values_);
    }
  }

  // softmax(query . key) value; the query is already scaled.
  //
  // The bound: each score is a sum of head_dim products, in any order, fused or not, of a query and
  // a key that may itself be a product and a sum (KIVI) of numbers up to the channel's largest; so
  // it errs by at most d = 2 (head_dim + 4) u sum |q_c| max_s |k_sc|, u = 2^-24. All weights are
  // then off by a factor within exp(+-(2d + 8u)), exp's own error and the merges' included, and
  // sums of n terms by n u more, relative to the largest value.
  //
  // Rotated back, the products are those of other numbers whose squares have the same sum: each is
  // at most the root of it, and the sum of products at most sqrt(head_dim) times both roots.
  //
  // A product may err by product_error of itself beside: that is part of d, and of each weighted
  // value.
  OracleResult Attend(std::span<const float> query, double product_error = 0.0) const {
    constexpr double kUnit = 0x1p-24;
    const std::size_t count = keys_.size() / dim_;
    OracleResult result{.out = std::vector<double>(dim_)};
    std::vector<double> scores(count);
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < count; ++s) {
      for (std::size_t c = 0; c < dim_; ++c) {
        scores[s] += static_cast<double>(query[c]) * keys_[s * dim_ + c];
      }
      most = std::max(most, scores[s]);
    }
    double sum = 0.0;
    double largest_value = 0.0;
    for (std::size_t s = 0; s < count; ++s) {
      const double weight = std::exp(scores[s] - most);
      sum += weight;
      for (std::size_t c = 0; c < dim_; ++c) {
        const double value = values_[s * dim_ + c];
        result.out[c] += weight * value;
        largest_value = std::max(largest_value, std::abs(value));
      }
    }
    double magnitude = 0.0;
    double query_square = 0.0;
    double key_square = 0.0;
    for (std::size_t c = 0; c < dim_; ++c) {
      result.out[c] /= sum;
      double largest_key = 0.0;
      for (std::size_t s = 0; s < count; ++s) {
        largest_key = std::max(largest_key, std::abs(keys_[s * dim_ + c]));
      }
      magnitude += std::abs(static_cast<double>(query[c])) * largest_key;
      query_square += static_cast<double>(query[c]) * static_cast<double>(query[c]);
      key_square += largest_key * largest_key;
    }
    if (rotated_back_) {
      magnitude = std::sqrt(static_cast<double>(dim_) * query_square * key_square);
      largest_value *= std::sqrt(static_cast<double>(dim_));
    }
    const double score_error =
        (2.0 * static_cast<double>(dim_ + 4) * kUnit + product_error) * magnitude;
    const double factor =
        std::expm1(2.0 * score_error + (8.0 + static_cast<double>(count)) * kUnit + product_error);
    result.bound = 2.0 * factor * largest_value + 1e-30;
    return result;
  }

 private:
  void Append(std::span<const float> row, bool rotated, std::vector<double>& to) const {
    if (rotated && rotated_back_) {
      const std::vector<double> back = RotatedBack(row);
      to.insert(to.end(), back.begin(), back.end());
    } else {
      to.insert(to.end(), row.begin(), row.end());
    }
  }

  std::size_t dim_;
  bool rotated_back_;
  std::vector<double> keys_;
  std::vector<double> values_;
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
