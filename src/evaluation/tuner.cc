#include "evaluation/tuner.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "evaluation/allocation.h"
#include "model/key_outliers.h"

namespace vericache {
namespace {

// By how much more or less than measured alone dropping may weigh.
constexpr std::array kKeepWeights = {0.3, 1.0, 3.0};

// Splits that are tried: formats of the important positions and of the others, and the share.
struct SplitPair {
  NumberFormat high;
  NumberFormat low;
};
constexpr std::array kSplitPairs = {SplitPair{NumberFormat::kQ8, NumberFormat::kKivi2},
                                    SplitPair{NumberFormat::kKivi4, NumberFormat::kKivi2},
                                    SplitPair{NumberFormat::kTurbo4, NumberFormat::kTurbo2}};
constexpr std::array kSplitShares = {0.25, 0.5};

void Consider(TunedProfile tuned, std::optional<TunedProfile>& best) {
  if (!best || tuned.acceptance > best->acceptance) {
    best = std::move(tuned);
  }
}

}  // namespace

Tuner::Tuner(const Model& model, std::span<const std::unique_ptr<DraftEvaluation>> prompts,
             TunerOptions options, const std::function<void(int done, int total)>& on_progress)
    : model_(model),
      prompts_(prompts),
      options_(std::move(options)),
      outliers_(LayersWithKeyOutliers(model)) {
  const auto layers = static_cast<std::size_t>(model.params().layers);
  const std::size_t each = options_.scorers.size() * options_.keeps.size() + options_.keys.size() +
                           options_.values.size();
  int done = 0;
  for (std::size_t index = 0; index < layers; ++index) {
    const auto measure = [&](const std::string& scorer, const LayerRecipe& recipe) {
      const double loss = Divergence(scorer, index, recipe);
      if (on_progress) {
        on_progress(++done, static_cast<int>(layers * each));
      }
      return loss;
    };
    Layer& layer = layers_.emplace_back();
    std::vector<double> keeps = {1.0};
    keeps.insert(keeps.end(), options_.keeps.begin(), options_.keeps.end());
    for (const std::string& scorer : options_.scorers) {
      std::vector<double>& losses = layer.keep_losses.emplace_back(1, 0.0);
      for (const double keep : options_.keeps) {
        losses.push_back(measure(scorer, {.keep = keep, .format = {}, .split = {}}));
      }
    }
    const NumberFormat plain = KvFormat{}.keys;
    std::vector<std::pair<NumberFormat, double>> keys = {{plain, 0.0}};
    for (const NumberFormat format : options_.keys) {
      keys.emplace_back(format,
                        measure("", {.keep = 1.0, .format = KvFormat{format, plain}, .split = {}}));
    }
    std::vector<std::pair<NumberFormat, double>> values = {{plain, 0.0}};
    for (const NumberFormat format : options_.values) {
      values.emplace_back(
          format, measure("", {.keep = 1.0, .format = KvFormat{plain, format}, .split = {}}));
    }
    for (std::size_t keep = 0; keep < keeps.size(); ++keep) {
      for (const auto& [key, key_loss] : keys) {
        for (const auto& [value, value_loss] : values) {
          std::vector<LayerRecipe> recipes = Plain();
          recipes[index] = {.keep = keeps[keep], .format = KvFormat{key, value}, .split = {}};
          const LayerRecipe recipe =
              Make("", std::move(recipes)).recipe(LayerId{static_cast<int>(index)});
          layer.choices.push_back({.recipe = recipe,
                                   .keep = keep,
                                   .format_loss = key_loss + value_loss,
                                   .bytes = BytesOf(recipe)});
        }
      }
    }
  }
}

std::vector<LayerRecipe> Tuner::Plain() const {
  return std::vector<LayerRecipe>(outliers_.size(),
                                  {.keep = 1.0, .format = std::nullopt, .split = std::nullopt});
}

Compressor Tuner::Make(const std::string& scorer, std::vector<LayerRecipe> layers) const {
  Compressor compressor = MakeCompressor(scorer.empty() ? "none" : scorer);
  compressor.layers = std::move(layers);
  ProtectOutlierKeys(compressor, outliers_);
  return compressor;
}

double Tuner::Divergence(const std::string& scorer, std::size_t layer,
                         const LayerRecipe& recipe) const {
  std::vector<LayerRecipe> layers = Plain();
  layers[layer] = recipe;
  const Compressor compressor = Make(scorer, std::move(layers));
  double sum = 0.0;
  for (const std::unique_ptr<DraftEvaluation>& prompt : prompts_) {
    sum += prompt->Divergence(compressor, 1.0);
  }
  return sum / static_cast<double>(prompts_.size());
}

double Tuner::BytesOf(const LayerRecipe& recipe) const {
  const CacheGeometry geometry = model_.params().geometry();
  const int kept = KeptPositions(options_.positions, recipe.keep.value_or(1.0));
  const LayerSlots slots = SlotsOf(recipe, /*residual=*/0, kept);
  // A page for what does not fill a group, whether this number of positions has one or not.
  Bytes bytes = LayerBytes(geometry, {}, std::max(slots.tail, 1));
  if (recipe.format) {
    bytes += LayerBytes(geometry, *recipe.format, slots.high);
  }
  if (recipe.split) {
    bytes += LayerBytes(geometry, recipe.split->low, slots.low);
  }
  return Count(bytes);
}

TunedProfile Tuner::Judge(const std::string& scorer, std::vector<LayerRecipe> layers,
                          std::string way) const {
  const Compressor compressor = Make(scorer, std::move(layers));
  TunedProfile tuned{.profile = {.model = model_.params().name,
                                 .scorer = scorer,
                                 .residual = 0,
                                 .layers = compressor.layers},
                     .way = std::move(way)};
  double bytes = 0.0;
  for (const LayerRecipe& recipe : compressor.layers) {
    bytes += BytesOf(recipe);
  }
  tuned.bytes_ratio =
      bytes / Count(PlainCacheBytes(model_.params().geometry(), {}, options_.positions));
  for (const std::unique_ptr<DraftEvaluation>& prompt : prompts_) {
    const DraftQuality quality = prompt->Judge(compressor, 1.0, {&options_.draft_length, 1});
    tuned.acceptance +=
        quality.rounds[0].acceptance_length().value_or(0.0) / static_cast<double>(prompts_.size());
  }
  return tuned;
}

// Each layer what its measurements say.
void Tuner::ByLayer(std::size_t scorer, double budget, std::optional<TunedProfile>& best) const {
  for (const double weight : kKeepWeights) {
    std::vector<std::vector<LayerOption>> options;
    for (const Layer& layer : layers_) {
      std::vector<LayerOption>& own = options.emplace_back();
      for (const Choice& choice : layer.choices) {
        own.push_back({.loss = weight * layer.keep_losses[scorer][choice.keep] + choice.format_loss,
                       .bytes = choice.bytes});
      }
    }
    const auto chosen = Allocate(options, budget);
    if (!chosen) {
      throw UserError(
          "no choice of keep ratios and formats takes so few of the full cache's bytes; "
          "smaller keep ratios may");
    }
    std::vector<LayerRecipe> recipes;
    recipes.reserve(chosen->size());
    for (std::size_t i = 0; i < chosen->size(); ++i) {
      recipes.push_back(layers_[i].choices[(*chosen)[i]].recipe);
    }
    std::ostringstream way;
    way << options_.scorers[scorer] << " by layer, drops weighing " << weight;
    Consider(Judge(options_.scorers[scorer], std::move(recipes), way.str()), best);
  }
}

// The same recipe for all layers, with the largest keep ratio that fits; empty where none does.
std::vector<LayerRecipe> Tuner::LargestThatFits(LayerRecipe recipe, double budget) const {
  std::vector<LayerRecipe> largest;
  for (int percent = options_.keeps.empty() ? 100 : 1; percent <= 100; ++percent) {
    recipe.keep = percent / 100.0;
    std::vector<LayerRecipe> all = Make("", std::vector(outliers_.size(), recipe)).layers;
    double bytes = 0.0;
    for (const LayerRecipe& each : all) {
      bytes += BytesOf(each);
    }
    if (bytes <= budget) {
      largest = std::move(all);
    }
  }
  return largest;
}

void Tuner::Alike(const std::string& scorer, double budget,
                  std::optional<TunedProfile>& best) const {
  const auto consider = [&](const LayerRecipe& recipe, const std::string& formats) {
    std::vector<LayerRecipe> recipes = LargestThatFits(recipe, budget);
    if (!recipes.empty()) {
      std::ostringstream way;
      way << scorer << " alike, keep " << *recipes[0].keep << ", " << formats;
      Consider(Judge(scorer, std::move(recipes), way.str()), best);
    }
  };
  for (const NumberFormat keys : options_.keys) {
    for (const NumberFormat values : options_.values) {
      if (Traits(values).bits <= Traits(keys).bits) {  // values need less
        consider({.keep = {}, .format = KvFormat{keys, values}, .split = {}},
                 std::string(Name(keys)) + " and " + std::string(Name(values)));
      }
    }
  }
  for (const auto& [high, low] : kSplitPairs) {
    for (const double share : kSplitShares) {
      std::ostringstream formats;
      formats << Name(high) << " for " << share << ", " << Name(low) << " for the rest";
      consider({.keep = {},
                .format = KvFormat{high, high},
                .split = Split{.low = {low, low}, .high_share = share}},
               formats.str());
    }
  }
}

// Made anew at each verify, where the scorer has newer attention to blend with.
void Tuner::Refreshed(std::optional<TunedProfile>& best) const {
  const std::string& scorer = best->profile.scorer;
  const std::string refreshing =
      scorer + (scorer.find(':') == std::string::npos ? ":" : ",") + "refresh=0.5";
  try {
    MakeCompressor(refreshing);
  } catch (const UserError&) {
    return;  // it has none
  }
  Consider(Judge(refreshing, best->profile.layers, best->way + ", refreshed"), best);
}

TunedProfile Tuner::Best(double bytes_ratio) const {
  const double budget =
      bytes_ratio * Count(PlainCacheBytes(model_.params().geometry(), {}, options_.positions));
  std::optional<TunedProfile> best;
  for (std::size_t scorer = 0; scorer < options_.scorers.size(); ++scorer) {
    ByLayer(scorer, budget, best);
  }
  Alike(std::string(best->profile.scorer), budget, best);
  Refreshed(best);
  return *best;
}

}  // namespace vericache
