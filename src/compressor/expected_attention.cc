#include "compressor/expected_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "attention/key_tiles.h"
#include "base/size.h"

namespace vericache {
namespace {

// a b, of square matrices whose size is a multiple of kLanes.
std::vector<float> Product(std::span<const float> a, std::span<const float> b, std::size_t dim) {
  constexpr std::size_t kLanes = 16;  // sums at once
  std::vector<float> product(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; j += kLanes) {
      std::array<float, kLanes> sums{};
      for (std::size_t k = 0; k < dim; ++k) {
        const float* row = b.data() + k * dim + j;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
          sums[lane] += a[i * dim + k] * row[lane];
        }
      }
      std::ranges::copy(sums, product.begin() + static_cast<std::ptrdiff_t>(i * dim + j));
    }
  }
  return product;
}

std::vector<float> Transposed(std::span<const float> matrix, std::size_t dim) {
  std::vector<float> transposed(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      transposed[j * dim + i] = matrix[i * dim + j];
    }
  }
  return transposed;
}

// The exponent of a key's expected weight is a quadratic form of the key: the mean of the rotated
// queries, over sqrt(d), and their covariance, over 2d.
struct Form {
  std::vector<float> rows;  // the covariance's, then the mean: [dim + 1][dim]
};

Form FormOf(const PromptView& prompt, LayerId layer, int head) {
  const std::vector<float> mean = prompt.taps->statistics->Mean(layer, head);
  const std::vector<float> covariance = prompt.taps->statistics->Covariance(layer, head);
  const std::size_t dim = mean.size();
  const auto size = static_cast<float>(dim);
  const std::span<const float> rotation = prompt.future_rotation;
  Form form{.rows = Product(Product(rotation, covariance, dim), Transposed(rotation, dim), dim)};
  for (float& number : form.rows) {
    number /= 2.0F * size;
  }
  for (std::size_t i = 0; i < dim; ++i) {
    const std::span<const float> row = rotation.subspan(i * dim, dim);
    form.rows.push_back(std::inner_product(row.begin(), row.end(), mean.begin(), 0.0F) /
                        std::sqrt(size));
  }
  return form;
}

// The form's values of a half page of keys.
void Apply(const Form& form, std::span<const float> tile, std::span<float> products,
           float* values) {
  MultiplyTile(form.rows, tile, products.data(), kGroupSlots);
  std::array<float, kGroupSlots> sums{};
  const float* product = products.data();
  for (const float* keys = tile.data(); keys != tile.data() + tile.size(); keys += kGroupSlots) {
    for (int s = 0; s < kGroupSlots; ++s) {
      sums[Size(s)] += keys[s] * product[s];
    }
    product += kGroupSlots;
  }
  for (int s = 0; s < kGroupSlots; ++s) {
    values[s] = sums[Size(s)] + product[s];
  }
}

}  // namespace

ExpectedAttention::ExpectedAttention(MethodOptions& options)
    : future_(options.Integer("future", kFuture, 1, 1 << 16)),
      epsilon_(static_cast<float>(options.Number("epsilon", kEpsilon, 0.0, 1.0))),
      recent_(options.Integer("recent", 0, 0, 1 << 16)) {}

LayerScores ExpectedAttention::Scores(const PromptView& prompt, LayerId layer) const {
  const CacheGeometry& geometry = prompt.full.geometry();
  const std::size_t dim = Size(geometry.head_dim);
  const int group = prompt.heads / geometry.kv_heads;
  const int sinks = std::min(kSinks, prompt.positions);
  const SegmentView full = prompt.full.tail_view(layer);
  const int slots = (prompt.positions + kGroupSlots - 1) / kGroupSlots * kGroupSlots;
  std::vector<float> tile(dim * kGroupSlots);
  std::vector<float> products((dim + 1) * kGroupSlots);
  std::vector<float> weights(Size(group * slots));
  std::vector<float> value(dim);
  LayerScores result;
  for (int head = 0; head < geometry.kv_heads; ++head) {
    std::vector<Form> forms;
    forms.reserve(Size(group));
    for (int g = 0; g < group; ++g) {
      forms.push_back(FormOf(prompt, layer, head * group + g));
    }
    for (int slot = 0; slot < slots; slot += kGroupSlots) {
      LoadKeyTile(full, head, slot, tile);
      for (int g = 0; g < group; ++g) {
        Apply(forms[Size(g)], tile, products, weights.data() + g * slots + slot);
      }
    }
    std::vector<float>& scores = result.emplace_back(Size(prompt.positions));
    for (int g = 0; g < group; ++g) {
      const auto row =
          std::span(weights).subspan(Size(g * slots + sinks), Size(prompt.positions - sinks));
      Softmax(row);
      for (std::size_t i = 0; i < row.size(); ++i) {
        scores[Size(sinks) + i] += row[i] / static_cast<float>(group);
      }
    }
    for (int i = 0; i < sinks; ++i) {  // before the recent ones
      scores[Size(i)] = kSurelyKept + static_cast<float>(prompt.positions + sinks - i);
    }
    for (int i = sinks; i < prompt.positions; ++i) {
      ReadValue(*full.layout, full.pages[Size(i / kPageSlots)], head, i % kPageSlots, value);
      const float length =
          std::sqrt(std::inner_product(value.begin(), value.end(), value.begin(), 0.0F));
      scores[Size(i)] = (scores[Size(i)] + epsilon_) * length;
    }
  }
  return result;
}

}  // namespace vericache
