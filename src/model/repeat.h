// The model repeats a text that it has read: what it then looks at is what the text's meaning
// depends on (KVzip, Kim et al. 2025, arXiv 2505.23416; github.com/snu-mllab/KVzip).
#pragma once

#include <span>
#include <vector>

#include "attention/taps.h"
#include "kvcache/kv_cache.h"
#include "model/tokenizer.h"
#include "model/transformer.h"

namespace vericache {

// What asks a model to repeat.
struct RepeatPrompt {
  std::vector<TokenId> first;   // before the first chunk
  std::vector<TokenId> next;    // before the others, whose last tokens follow it
  std::vector<TokenId> suffix;  // then: from the user's turn to the assistant's
};

// In the authors' words, the turn in the model's chat template ("\n" where it has none).
RepeatPrompt RepeatPromptOf(const Tokenizer& tokenizer);

// Fills taps.repeated: the largest attention that each key of `full`, which holds `tokens`, gets
// while these are fed again in chunks of `chunk` tokens, each after what asks for it. Of the text
// such rows see, as far as this is recorded, the first tokens and the chunk. `rows` are computed at
// once. Throws as Transformer::Forward does. The pages that this takes meanwhile come from memory
// of their own.
void RecordRepetition(Transformer& transformer, const KvCache& full,
                      std::span<const TokenId> tokens, const RepeatPrompt& prompt, int chunk,
                      int rows, Taps& taps);

}  // namespace vericache
