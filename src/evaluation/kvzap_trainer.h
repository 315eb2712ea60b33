#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compressor/kvzip.h"
#include "evaluation/network_fit.h"
#include "model/repeat.h"
#include "model/transformer.h"

namespace vericache {

struct TrainingOptions {
  int tokens = 8192;  // at most, of all texts together
  int window = 2048;  // tokens of a text that are computed as one context
  int epochs = 20;
  int prefill_chunk = 512;
};

// The authors: an eighth of the model's width between the two products.
inline constexpr int kWidthOverHidden = 8;

// Has the model read and repeat texts, and fits for each layer a network that tells the logarithm
// of KVzip's score of each KV head's key from the hidden state. The last
// eighth of the tokens, at least a batch, is held out. Throws UserError where the texts have less
// than two batches of tokens.
std::vector<Fit> TrainKvZap(Transformer& transformer, std::span<const std::vector<TokenId>> texts,
                            const RepeatPrompt& repeat, const TrainingOptions& options,
                            const std::function<void(int done, int total)>& on_progress = {});

}  // namespace vericache
