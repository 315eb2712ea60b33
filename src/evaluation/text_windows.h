// Texts as a model reads them to learn something of it: in contexts of a certain length.
#pragma once

#include <span>
#include <vector>

#include "attention/taps.h"
#include "kvcache/kv_cache.h"
#include "model/transformer.h"

namespace vericache {

// The texts cut into contexts of `window` tokens, or what the model's own context holds, until
// `tokens` in all; what is left of a text is one, too, if it has more than a group of slots.
std::vector<std::span<const TokenId>> TextWindows(std::span<const std::vector<TokenId>> texts,
                                                  int tokens, int window, int context);

// Computes a text into an empty cache, `chunk` rows at once. Throws UserError where memory does not
// suffice.
void Prefill(Transformer& transformer, std::span<const TokenId> text, int chunk, KvCache& cache,
             Taps* taps = nullptr);

}  // namespace vericache
