// What makes a small cache from a full one: an optional token scorer, which says what positions
// each head keeps, and a format, which says in how many bits.
//
// To add a method, write one file beside this one that implements TokenScorer (or a KvFormat in
// kvcache/) and add a line to the table in registry.cc; engine and scheduler do not change.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/query_tap.h"
#include "kvcache/kv_cache.h"

namespace vericache {

// Kept positions of a layer, per KV head, ascending. All heads of a layer keep the same number,
// though not the same positions.
using LayerSelection = std::vector<std::vector<int>>;

// What a scorer sees after the prefill.
struct PromptView {
  const KvCache& full;  // slot = position
  const QueryTap* tap;  // queries of the last query_window() positions; nullptr if it is 0
  int positions = 0;    // of the prompt
  int heads = 0;        // query heads
};

// Which positions are worth keeping.
class TokenScorer {
 public:
  TokenScorer() = default;
  TokenScorer(const TokenScorer&) = delete;
  TokenScorer& operator=(const TokenScorer&) = delete;
  virtual ~TokenScorer() = default;

  // How many of the prompt's last queries Select looks at; 0: none.
  virtual int query_window() const { return 0; }

  // Picks `count` positions of each head of `layer`, 0 < count <= prompt.positions.
  virtual LayerSelection Select(const PromptView& prompt, LayerId layer, int count) const = 0;
};

struct Compressor {
  std::string name;
  std::unique_ptr<TokenScorer> scorer;  // nullptr: all positions are kept
  std::optional<KvFormat> format;       // of packed slots; nullopt: plain, as in the full cache
  // The most recent slots that stay plain where a format packs the others.
  int residual = 0;
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
