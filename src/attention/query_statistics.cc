#include "attention/query_statistics.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/size.h"

namespace vericache {
namespace {

constexpr int kBlock = 16;  // channels that one pass over the rows adds up together

// products[i][j] += sum over rows of x[row][i] * x[row][j], for j from the block of i on.
void AddProducts(std::span<const float> x, int rows, int dim, std::span<float> products) {
  for (int i = 0; i < dim; ++i) {
    for (int block = i / kBlock * kBlock; block < dim; block += kBlock) {
      std::array<float, kBlock> sums{};
      const float* row = x.data();
      for (int r = 0; r < rows; ++r, row += dim) {
        for (int j = 0; j < kBlock; ++j) {
          sums[Size(j)] += row[i] * row[block + j];
        }
      }
      float* to = products.data() + i * dim + block;
      for (int j = 0; j < kBlock; ++j) {
        to[j] += sums[Size(j)];
      }
    }
  }
}

}  // namespace

QueryStatistics::QueryStatistics(int layers, int heads, int head_dim)
    : heads_(heads), head_dim_(head_dim), heads_by_layer_(Size(layers * heads)) {
  Check(head_dim % kBlock == 0, "whole blocks of channels");
}

void QueryStatistics::Add(LayerId layer, int first_position, int rows, const float* queries,
                          int thread, int threads) {
  const int skipped = std::clamp(kSkipped - first_position, 0, rows);
  if (skipped == rows) {
    return;
  }
  const std::size_t dim = Size(head_dim_);
  const int added = rows - skipped;
  std::vector<float> centred(Size(added) * dim);
  for (int h = thread; h < heads_; h += threads) {
    Head& head = at(layer, h);
    const auto row = [&](int r) {
      return std::span(queries + (Size(skipped + r) * Size(heads_) + Size(h)) * dim, dim);
    };
    if (head.count == 0) {
      head.first.assign(row(0).begin(), row(0).end());
      head.sum.assign(dim, 0.0F);
      head.products.assign(dim * dim, 0.0F);
    }
    for (int r = 0; r < added; ++r) {
      for (std::size_t c = 0; c < dim; ++c) {
        const float x = row(r)[c] - head.first[c];
        centred[Size(r) * dim + c] = x;
        head.sum[c] += x;
      }
    }
    AddProducts(centred, added, head_dim_, head.products);
    head.count += added;
  }
}

std::vector<float> QueryStatistics::Mean(LayerId layer, int head) const {
  const Head& from = at(layer, head);
  std::vector<float> mean(Size(head_dim_));
  for (std::size_t c = 0; from.count > 0 && c < mean.size(); ++c) {
    mean[c] = from.first[c] + from.sum[c] / static_cast<float>(from.count);
  }
  return mean;
}

std::vector<float> QueryStatistics::Covariance(LayerId layer, int head) const {
  const Head& from = at(layer, head);
  const std::size_t dim = Size(head_dim_);
  std::vector<float> covariance(dim * dim);
  if (from.count == 0) {
    return covariance;
  }
  const double count = from.count;
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = i; j < dim; ++j) {
      const double mean = static_cast<double>(from.sum[i]) * static_cast<double>(from.sum[j]);
      const double product = static_cast<double>(from.products[i * dim + j]);
      const auto value = static_cast<float>(product / count - mean / (count * count));
      covariance[i * dim + j] = value;
      covariance[j * dim + i] = value;
    }
  }
  return covariance;
}

}  // namespace vericache
