#include "compressor/compressor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace vericache {
namespace {

// The kept rows of a layer of the full cache, one head at a time.
class KeptRows {
 public:
  KeptRows(const KvCache& full, LayerId layer, const LayerSelection& selection)
      : full_(full), layer_(layer), selection_(selection) {}

  void Read(int slot, int head, std::span<float> key, std::span<float> value) const {
    full_.ReadTail(layer_, Position(slot, head), head, key, value);
  }
  void Copy(int slot, int head, KvCache& cache, int tail_slot) const {
    cache.CopySlot(layer_, tail_slot, head, full_, Position(slot, head));
  }
  int Position(int slot, int head) const {
    return selection_[static_cast<std::size_t>(head)][static_cast<std::size_t>(slot)];
  }

 private:
  const KvCache& full_;
  LayerId layer_;
  const LayerSelection& selection_;
};

// Gives a part the ranges of key channels, from some of the rows that go there, evenly spread.
void FindKeyRanges(const KeptRows& rows, const LayerSelection& slots, LayerId layer, int part,
                   KvCache& cache) {
  constexpr std::size_t kMostRows = 512;
  const std::size_t dim = static_cast<std::size_t>(cache.geometry().head_dim);
  std::vector<float> keys;
  std::vector<int> positions;
  std::vector<float> key(dim);
  std::vector<float> value(dim);
  for (std::size_t head = 0; head < slots.size(); ++head) {
    const std::size_t count = std::min(slots[head].size(), kMostRows);
    for (std::size_t i = 0; i < count; ++i) {
      const int slot = slots[head][i * slots[head].size() / count];
      rows.Read(slot, static_cast<int>(head), key, value);
      keys.insert(keys.end(), key.begin(), key.end());
      positions.push_back(rows.Position(slot, static_cast<int>(head)));
    }
  }
  cache.SetKeyRanges(layer, part, keys, positions);
}

// Packs the rows of `slots`, which are ascending and per head, into a part of a layer.
bool FillPart(const KeptRows& rows, const LayerSelection& slots, LayerId layer, int part,
              KvCache& cache) {
  const CacheGeometry& geometry = cache.geometry();
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  std::vector<float> keys(static_cast<std::size_t>(geometry.kv_heads * kGroupSlots) * dim);
  std::vector<float> values(keys.size());
  const auto row = [&](std::vector<float>& floats, int head, int slot) {
    return std::span(floats).subspan(static_cast<std::size_t>(head * kGroupSlots + slot) * dim,
                                     dim);
  };
  std::vector<int> positions(static_cast<std::size_t>(geometry.kv_heads * kGroupSlots));
  const std::size_t count = slots.empty() ? 0 : slots[0].size();
  if (count > 0 && cache.NeedsKeyRanges(layer, part)) {
    FindKeyRanges(rows, slots, layer, part, cache);
  }
  for (std::size_t first = 0; first < count; first += kGroupSlots) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      for (int s = 0; s < kGroupSlots; ++s) {
        const int slot = slots[static_cast<std::size_t>(head)][first + static_cast<std::size_t>(s)];
        rows.Read(slot, head, row(keys, head, s), row(values, head, s));
        positions[static_cast<std::size_t>(head * kGroupSlots + s)] = rows.Position(slot, head);
      }
    }
    if (!cache.AppendGroup(layer, part, keys, values, positions)) {
      return false;
    }
  }
  return true;
}

bool FillTail(const KeptRows& rows, int first, int count, LayerId layer, KvCache& cache) {
  if (!cache.ExtendLayer(layer, count)) {
    return false;
  }
  for (int slot = 0; slot < count; ++slot) {
    for (int head = 0; head < cache.geometry().kv_heads; ++head) {
      rows.Copy(first + slot, head, cache, slot);
    }
  }
  return true;
}

// Of each head the numbers [0, count).
LayerSelection AllOf(int heads, int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return LayerSelection(static_cast<std::size_t>(heads), all);
}

// Slots of a layer by the part that takes them, per head and ascending.
struct PackedSlots {
  LayerSelection high;
  LayerSelection low;
};

// Which of the packed slots, the first ones of `kept`, go where. `scores` are those of positions;
// empty: later ones are worth more.
PackedSlots SplitSlots(const LayerSlots& slots, const LayerScores& scores,
                       const LayerSelection& kept) {
  if (slots.low == 0) {
    return {.high = AllOf(static_cast<int>(kept.size()), slots.high), .low = {}};
  }
  const auto packed = static_cast<std::size_t>(slots.high + slots.low);
  LayerScores of_slots;
  for (std::size_t head = 0; head < kept.size(); ++head) {
    std::vector<float>& worth = of_slots.emplace_back(packed);
    for (std::size_t slot = 0; slot < packed; ++slot) {
      worth[slot] = scores.empty() ? static_cast<float>(slot)
                                   : scores[head][static_cast<std::size_t>(kept[head][slot])];
    }
  }
  PackedSlots split{.high = Select(of_slots, slots.high), .low = {}};
  for (const std::vector<int>& high : split.high) {
    std::vector<int>& low = split.low.emplace_back();
    for (int slot = 0; slot < slots.high + slots.low; ++slot) {
      if (!std::ranges::binary_search(high, slot)) {
        low.push_back(slot);
      }
    }
  }
  return split;
}

}  // namespace

bool Compressor::takes_keep() const {
  return scorer && (layers.empty() || std::ranges::any_of(layers, [](const LayerRecipe& layer) {
                      return !layer.keep;
                    }));
}

LayerRecipe Compressor::recipe(LayerId layer) const {
  if (layers.empty()) {
    return {.keep = std::nullopt, .format = format, .split = split};
  }
  return layers.at(static_cast<std::size_t>(Raw(layer)));
}

bool Compressor::IsKvQuant() const {
  const auto is_kvquant = [](const LayerRecipe& each) {
    return (each.format && vericache::IsKvQuant(*each.format)) ||
           (each.split && vericache::IsKvQuant(each.split->low));
  };
  return layers.empty() ? is_kvquant(recipe(LayerId{0})) : std::ranges::any_of(layers, is_kvquant);
}

namespace {

NumberFormat WithOutliers(NumberFormat keys) {
  const FormatTraits& traits = Traits(keys);
  const bool per_channel =
      (traits.grouping == Grouping::kGroups && !traits.rotated) || IsKvQuant(keys);
  if (traits.grouping == Grouping::kPlain || per_channel || keys == NumberFormat::kQ8) {
    return keys;
  }
  return traits.bits == 8   ? NumberFormat::kQ8
         : traits.bits == 2 ? NumberFormat::kKivi2
                            : NumberFormat::kKivi4;
}

}  // namespace

void ProtectOutlierKeys(Compressor& compressor, const std::vector<bool>& outliers) {
  std::vector<LayerRecipe> layers;
  std::string changed;
  for (std::size_t i = 0; i < outliers.size(); ++i) {
    LayerRecipe& recipe = layers.emplace_back(compressor.recipe(LayerId{static_cast<int>(i)}));
    const LayerRecipe before = recipe;
    if (outliers[i] && recipe.format) {
      recipe.format->keys = WithOutliers(recipe.format->keys);
    }
    if (outliers[i] && recipe.split) {
      recipe.split->low.keys = WithOutliers(recipe.split->low.keys);
    }
    if (recipe.format != before.format ||
        (recipe.split && recipe.split->low != before.split->low)) {
      changed += (changed.empty() ? "" : ", ") + std::to_string(i);
    }
  }
  if (!changed.empty()) {
    compressor.layers = std::move(layers);
    compressor.note =
        "keys of layers " + changed + " have outlier channels and are held per channel";
  }
}

PackedFormats Compressor::packed_formats() const {
  std::vector<std::vector<KvFormat>> formats;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, layers.size()); ++i) {
    const LayerRecipe of_layer = recipe(LayerId{static_cast<int>(i)});
    std::vector<KvFormat>& parts = formats.emplace_back();
    if (of_layer.format) {
      parts.push_back(*of_layer.format);
    }
    if (of_layer.format && of_layer.split) {
      parts.push_back(of_layer.split->low);
    }
  }
  return PackedFormats(std::move(formats), kvquant);
}

LayerSlots SlotsOf(const LayerRecipe& recipe, int residual, int count) {
  const int packed = recipe.format ? std::max(0, count - residual) / kGroupSlots * kGroupSlots : 0;
  int high = packed;
  if (recipe.split) {
    const double groups = recipe.split->high_share * packed / kGroupSlots;
    high = std::min(packed, static_cast<int>(std::ceil(groups - 1e-6)) * kGroupSlots);
  }
  return {.high = high, .low = packed - high, .tail = count - packed};
}

int KeptPositions(int positions, double keep) {
  // A hair less: 0.07 of 100 is above 7 in binary.
  return std::clamp(static_cast<int>(std::ceil(keep * positions - 1e-6)), 1, positions);
}

LayerSelection Select(const LayerScores& scores, int count) {
  LayerSelection selection;
  for (const std::vector<float>& head : scores) {
    Check(count <= static_cast<int>(head.size()), "no more positions than there are");
    std::vector<int> order(head.size());
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + count - 1, order.end(), [&](int a, int b) {
      const float x = head[static_cast<std::size_t>(a)];
      const float y = head[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    order.resize(static_cast<std::size_t>(count));
    std::ranges::sort(order);
    selection.push_back(std::move(order));
  }
  return selection;
}

void KeepSinks(LayerScores& scores, int sinks) {
  for (std::vector<float>& head : scores) {
    const auto positions = static_cast<int>(head.size());
    for (int i = 0; i < std::min(sinks, positions); ++i) {
      head[static_cast<std::size_t>(i)] = kSurelyKept + static_cast<float>(positions + sinks - i);
    }
  }
}

void KeepRecent(LayerScores& scores, int recent) {
  for (std::vector<float>& head : scores) {
    const auto count = static_cast<int>(head.size());
    for (int i = std::max(0, count - recent); i < count; ++i) {
      float& score = head[static_cast<std::size_t>(i)];
      score = std::max(score, kSurelyKept + static_cast<float>(i));
    }
  }
}

KvCache Compress(const Compressor& compressor, const PromptView& prompt, double keep,
                 PagePool& pool, RefreshState* state) {
  if (state != nullptr) {
    *state = {.scores = {}, .prompt = prompt.positions, .seen = prompt.positions};
  }
  const auto count_of = [&](LayerId layer) {
    return compressor.scorer
               ? KeptPositions(prompt.positions, compressor.recipe(layer).keep.value_or(keep))
               : prompt.positions;
  };
  const auto scores_of = [&](LayerId layer, int count) {
    const bool matters =
        state != nullptr || count < prompt.positions || compressor.recipe(layer).split;
    if (!compressor.scorer || !matters) {
      return LayerScores{};
    }
    LayerScores scores = compressor.scorer->Scores(prompt, layer);
    if (state != nullptr) {
      state->scores.push_back(scores);
    }
    KeepRecent(scores, compressor.scorer->recent(count));
    return scores;
  };
  return CompressBy(compressor, prompt.full, {.count = count_of, .scores = scores_of}, pool);
}

KvCache CompressBy(const Compressor& compressor, const KvCache& full, const Choice& choice,
                   PagePool& pool) {
  const CacheGeometry& geometry = full.geometry();
  KvCache cache(pool, PageKind::kResident, geometry, full.tail_layout().format(),
                compressor.packed_formats());
  for (int i = 0; i < geometry.layers; ++i) {
    const LayerId layer{i};
    const LayerRecipe recipe = compressor.recipe(layer);
    const int count = choice.count(layer);
    const LayerScores scores = choice.scores(layer, count);
    const LayerSelection kept =
        scores.empty() ? AllOf(geometry.kv_heads, count) : Select(scores, count);
    const LayerSlots slots = SlotsOf(recipe, compressor.residual, count);
    const PackedSlots packed = SplitSlots(slots, scores, kept);
    const KeptRows rows(full, layer, kept);
    const bool fits = FillPart(rows, packed.high, layer, 0, cache) &&
                      FillPart(rows, packed.low, layer, 1, cache) &&
                      FillTail(rows, slots.high + slots.low, slots.tail, layer, cache);
    if (!fits) {
      throw UserError("the compressed cache does not fit into fast memory (" +
                      HumanBytes(pool.budget()) + ")");
    }
  }
  return cache;
}

}  // namespace vericache
