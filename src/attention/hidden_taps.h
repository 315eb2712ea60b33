// What is recorded of the hidden states that each layer's attention reads, after their norm.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/size.h"
#include "base/types.h"
#include "kvcache/format.h"

namespace vericache {

class ScorePredictor;

// What a network says that each position is worth (model/score_predictor.h).
class PredictedScores {
 public:
  PredictedScores(std::shared_ptr<const ScorePredictor> predictor, const CacheGeometry& geometry)
      : predictor_(std::move(predictor)),
        scores_(Size(geometry.layers), std::vector<std::vector<float>>(Size(geometry.kv_heads))) {}

  const ScorePredictor& predictor() const { return *predictor_; }

  // Of rows from `position` on: [row][kv_head]. Earlier ones of the same positions are forgotten.
  // What is no number is worth least, and nothing more than what scorers keep surely.
  void Set(LayerId layer, int position, int rows, const float* scores) {
    std::vector<std::vector<float>>& heads = scores_[Size(Raw(layer))];
    for (std::size_t head = 0; head < heads.size(); ++head) {
      heads[head].resize(std::max(heads[head].size(), Size(position + rows)));
      for (std::size_t row = 0; row < Size(rows); ++row) {
        const float score = scores[row * heads.size() + head];
        heads[head][Size(position) + row] =
            std::isfinite(score) ? std::clamp(score, -kMost, kMost) : -kMost;
      }
    }
  }

  // Of the first `positions`.
  std::span<const float> of(LayerId layer, int head, int positions) const {
    return std::span(scores_[Size(Raw(layer))][Size(head)]).first(Size(positions));
  }

 private:
  static constexpr float kMost = 1 << 20;

  std::shared_ptr<const ScorePredictor> predictor_;
  std::vector<std::vector<std::vector<float>>> scores_;  // [layer][kv_head][position]
};

// All of them, of a text of `positions` positions.
class HiddenStates {
 public:
  HiddenStates(int layers, int positions, int width)
      : positions_(Size(positions)),
        width_(Size(width)),
        states_(Size(layers) * positions_ * width_) {}

  std::size_t width() const { return width_; }

  void Set(LayerId layer, int position, int rows, const float* states) {
    std::copy_n(states, Size(rows) * width_,
                states_.begin() + static_cast<std::ptrdiff_t>(
                                      (Size(Raw(layer)) * positions_ + Size(position)) * width_));
  }

  // [position][width]
  std::span<const float> of(LayerId layer) const {
    return std::span(states_).subspan(Size(Raw(layer)) * positions_ * width_, positions_ * width_);
  }

 private:
  std::size_t positions_;
  std::size_t width_;
  std::vector<float> states_;
};

}  // namespace vericache
