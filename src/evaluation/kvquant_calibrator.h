#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kvcache/kvquant.h"
#include "model/transformer.h"

namespace vericache {

struct CalibrationOptions {
  int tokens = 4096;  // at most, of all texts together
  int window = 2048;  // tokens of a text that are computed as one context
  float outliers = 0.01F;
  int prefill_chunk = 512;
};

// Runs texts through the model and finds, for each layer, the ranges of its key channels before
// RoPE, and the levels of least squared error of keys and of values over their ranges. The first
// token of a context, which KVQuant keeps as it is, does not count. Throws UserError where the
// texts have less than two groups of tokens.
std::vector<KvQuant> CalibrateKvQuant(
    Transformer& transformer, std::span<const std::vector<TokenId>> texts,
    const CalibrationOptions& options,
    const std::function<void(int done, int total)>& on_progress = {});

}  // namespace vericache
