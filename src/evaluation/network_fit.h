// Fits the network of one layer (model/score_predictor.h) to examples, through ggml's optimizer.
#pragma once

#include <span>

#include "model/score_predictor.h"

namespace vericache {

// Rows of inputs [row][width] and of the outputs that belong to them [row][outputs].
struct Examples {
  std::span<const float> inputs;
  std::span<const float> outputs;
  int width = 0;
  int outputs_of_row = 0;

  int rows() const { return static_cast<int>(inputs.size()) / width; }
};

struct FitOptions {
  int hidden = 0;  // numbers between the two products
  int epochs = 20;
  int threads = 1;
};

struct Fit {
  PredictorValues values;
  // The share of the variance of outputs that are not trained on which it tells: the mean over the
  // outputs, 1 - squared error / variance.
  double r2 = 0.0;
};

// A step of training takes so many rows; there must be as many of either kind at least.
inline constexpr int kFitBatch = 64;

// Trains on whole batches of `train` by AdamW, the squared error being least, and looks how good it
// is on `held_out`. The same examples give the same network.
Fit FitNetwork(const Examples& train, const Examples& held_out, const FitOptions& options);

}  // namespace vericache
