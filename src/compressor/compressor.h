// What makes a small cache from a full one: an optional token scorer, which says what positions
// each head keeps, and a format, which says in how many bits.
//
// To add a method, write one file beside this one that implements TokenScorer (or a KvFormat in
// kvcache/) and add a line to the table in registry.cc; engine and scheduler do not change.
#pragma once

#include <functional>
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
  // Last positions that are surely kept where `count` are kept in all.
  virtual int recent(int /*count*/) const { return 0; }
  // Whether scores are sums of attention, to which the queries of each verify add theirs.
  virtual bool accumulates() const { return false; }
  // Whether a network scores every position, those of verifies included, see Compressor::predictor:
  // its file, "" for the one beside the model.
  virtual std::optional<std::string> network() const { return std::nullopt; }

  virtual LayerScores Scores(const PromptView& prompt, LayerId layer) const = 0;
};

// The `count` positions of the highest scores of each head; among equal scores the earlier ones.
LayerSelection Select(const LayerScores& scores, int count);

// How a compressed cache is made anew after each verify, see refresh.h.
struct RefreshOptions {
  static constexpr int kQueries = 16;

  // Weight of what the newest verified queries attend to, against the scores that the prompt was
  // compressed by; 0: nothing is refreshed.
  double blend = 0.0;
  int queries = kQueries;  // that are looked at
};

// Positions of a layer split over two formats by their worth, instead of dropped: by their scores,
// or without a scorer the most recent ones before the others.
struct Split {
  KvFormat low;              // of the less important ones
  double high_share = 0.25;  // of the packed slots that stay in the other format

  bool operator==(const Split&) const = default;
};

// How one layer of the compressed cache is made.
struct LayerRecipe {
  std::optional<double> keep;      // share of the positions; nullopt: the one asked for
  std::optional<KvFormat> format;  // of packed slots; nullopt: plain, as in the full cache
  std::optional<Split> split;
};

struct Compressor {
  std::string name;
  std::unique_ptr<TokenScorer> scorer;  // nullptr: all positions are kept
  std::optional<KvFormat> format;       // of packed slots; nullopt: plain, as in the full cache
  // The most recent slots that stay plain where a format packs the others.
  int residual = 0;
  RefreshOptions refresh;
  std::optional<Split> split = std::nullopt;
  std::vector<LayerRecipe> layers = {};  // where they differ: one for each layer
  std::string note = "";                 // what of it is not as its name says, for people
  // Of KVQuant formats: the calibration's file, "" where the name gives none, and what pages of
  // each layer are written and read by, see CompressorFor.
  std::string calibration = "";
  KvQuantOfLayers kvquant = {};
  std::shared_ptr<const ScorePredictor> predictor = nullptr;  // the scorer's, see CompressorFor

  // Whether the scorer goes on scoring while the text grows.
  bool online() const { return scorer && (scorer->accumulates() || scorer->network()); }
  // Whether the compressed cache is made anew after each verify.
  bool refreshes() const { return refresh.blend > 0.0 || online(); }
  TapNeeds needs() const {
    const TapNeeds own = scorer ? scorer->needs() : TapNeeds{};
    return own | TapNeeds{.verified_window = refresh.blend > 0.0 ? refresh.queries : 0,
                          .predictor = predictor};
  }
  int future_positions() const { return scorer ? scorer->future_positions() : 0; }
  // Whether the keep ratio that is asked for matters.
  bool takes_keep() const;
  LayerRecipe recipe(LayerId layer) const;
  // Whether a layer has a KVQuant format.
  bool IsKvQuant() const;
  PackedFormats packed_formats() const;
};

// Slots of a layer that keeps `count` positions: packed in its format and, where it is split, in
// the other one, then plain.
struct LayerSlots {
  int high = 0;
  int low = 0;
  int tail = 0;
};
LayerSlots SlotsOf(const LayerRecipe& recipe, int residual, int count);

// In the layers whose keys have outlier channels, gives keys that a format would scale per token,
// or rotate, a scale per channel instead: KIVI's, in at least as many bits, or q8 for q8r (q8
// itself has enough of them), and says so in `note`. `outliers` has an entry for each layer of the
// model.
void ProtectOutlierKeys(Compressor& compressor, const std::vector<bool>& outliers);

// Makes a compressor from its name: a scorer, a format, or both joined by '+', each with options
// where wanted ("snapkv:window=32,kernel=7+kivi4"), or "none", which copies the full cache. A
// format may also be two, of keys and of values: "k=q8,v=q4"; or of important positions and of
// others: "split:high=q8,low=kivi2". "profile:FILE" is what a profile
// says, layer by layer. Throws UserError, listing what is known, for any other.
Compressor MakeCompressor(std::string_view name);

// Names that MakeCompressor knows, without combinations.
std::vector<std::string> CompressorNames();

// The options of one of these, with their defaults: "window=32,kernel=5"; "" where it has none.
std::string CompressorOptions(std::string_view name);

// Positions that a drop method keeps of `positions` at keep ratio `keep`: rounded up, at least one.
int KeptPositions(int positions, double keep);

// What a refresh starts from.
struct RefreshState {
  std::vector<LayerScores> scores;  // by layer: the prompt's, or the sums so far
  int prompt = 0;                   // its positions
  int seen = 0;                     // positions whose queries have been looked at
};

// Makes the first `sinks` positions of each head surely kept, before the recent ones.
void KeepSinks(LayerScores& scores, int sinks);

// Makes the last `recent` positions of each head surely kept.
void KeepRecent(LayerScores& scores, int recent);

// The compressed cache of a prompt: the kept positions, packed where the compressor has a format.
// `state`, where given, is what Refresh starts from. Throws UserError where the pool has no room.
KvCache Compress(const Compressor& compressor, const PromptView& prompt, double keep,
                 PagePool& pool, RefreshState* state = nullptr);

// What each layer keeps.
struct Choice {
  std::function<int(LayerId layer)> count;  // positions of each head
  // Those of the highest scores; the first ones where there are no scores.
  std::function<LayerScores(LayerId layer, int count)> scores;
};

// The compressed cache of the positions of `full` that `choice` keeps.
KvCache CompressBy(const Compressor& compressor, const KvCache& full, const Choice& choice,
                   PagePool& pool);

}  // namespace vericache
