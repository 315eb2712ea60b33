// What makes a small cache from a full one: an optional token scorer, which says what positions
// each head keeps, and a format, which says in how many bits.
//
// To add a method, write one file beside this one that implements TokenScorer (or a KvFormat in
// kvcache/) and add a line to the table in registry.cc; engine and scheduler do not change.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/taps.h"
#include "kvcache/kv_cache.h"

namespace vericache {

// What each position of a layer is worth, per KV head: [kv_head][position]. The highest are kept.
using LayerScores = std::vector<std::vector<float>>;

// Scores from here on are of positions that go before all others, whatever their worth, in their
// own order; other scores are below.
inline constexpr float kSurelyKept = 1 << 23;

// Kept positions of a layer, per KV head, ascending. All heads of a layer keep the same number,
// though not the same positions.
using LayerSelection = std::vector<std::vector<int>>;

// What a scorer sees after the prefill.
struct PromptView {
  const KvCache& full;         // slot = position
  const Taps* taps = nullptr;  // what the scorer asked for; nullptr where it asked for nothing
  int positions = 0;           // of the prompt
  int heads = 0;               // query heads
  // RoPE of the next future_positions() positions, averaged: the matrix [head_dim][head_dim] by
  // which a query is multiplied. Empty where the scorer does not ask.
  std::span<const float> future_rotation = {};
};

// What positions are worth.
class TokenScorer {
 public:
  TokenScorer() = default;
  TokenScorer(const TokenScorer&) = delete;
  TokenScorer& operator=(const TokenScorer&) = delete;
  virtual ~TokenScorer() = default;

  // What is to be recorded of the prompt.
  virtual TapNeeds needs() const { return {}; }
  // Positions after the prompt over which PromptView::future_rotation is averaged; 0: none.
  virtual int future_positions() const { return 0; }

  virtual LayerScores Scores(const PromptView& prompt, LayerId layer) const = 0;
};

// The `count` positions of the highest scores of each head; among equal scores the earlier ones.
LayerSelection Select(const LayerScores& scores, int count);

struct Compressor {
  std::string name;
  std::unique_ptr<TokenScorer> scorer;  // nullptr: all positions are kept
  std::optional<KvFormat> format;       // of packed slots; nullopt: plain, as in the full cache
  // The most recent slots that stay plain where a format packs the others.
  int residual = 0;

  TapNeeds needs() const { return scorer ? scorer->needs() : TapNeeds{}; }
  int future_positions() const { return scorer ? scorer->future_positions() : 0; }
};

// Makes a compressor from its name: a scorer, a format, or both joined by '+', each with options
// where wanted ("snapkv:window=32,kernel=7+kivi4"), or "none", which copies the full cache. A
// format may also be two, of keys and of values: "k=q8,v=q4". Throws UserError, listing what is
// known, for any other.
Compressor MakeCompressor(std::string_view name);

// Names that MakeCompressor knows, without combinations.
std::vector<std::string> CompressorNames();

// The options of one of these, with their defaults: "window=32,kernel=5"; "" where it has none.
std::string CompressorOptions(std::string_view name);

// Positions that a drop method keeps of `positions` at keep ratio `keep`: rounded up, at least one.
int KeptPositions(int positions, double keep);

// The compressed cache of a prompt: the kept positions, packed where the compressor has a format.
// Throws UserError where the pool has no room.
KvCache Compress(const Compressor& compressor, const PromptView& prompt, double keep,
                 PagePool& pool);

}  // namespace vericache
