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

}  // namespace

Tuner::Tuner(const Model& model, std::span<const std::unique_ptr<DraftEvaluation>> prompts,
             TunerOptions options, const std::function<void(int done, int total)>& on_progress)
    : model_(model),
      prompts_(prompts),
      options_(std::move(options)),
      outliers_(LayersWithKeyOutliers(model)) {
  const auto layers = static_cast<std::size_t>(model.params().layers);
  if (options_.scorer.empty()) {
    options_.keeps.clear();
  }
  const std::size_t each = options_.keeps.size() + options_.keys.size() + options_.values.size();
  int done = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto measure = [&](const LayerRecipe& recipe) {
      const double loss = Divergence(layer, recipe);
      if (on_progress) {
        on_progress(++done, static_cast<int>(layers * each));
      }
      return loss;
    };
    std::vector<std::pair<double, double>> keeps = {{1.0, 0.0}};
    for (const double keep : options_.keeps) {
      keeps.emplace_back(keep, measure({.keep = keep, .format = {}, .split = {}}));
    }
    const NumberFormat plain = KvFormat{}.keys;
    std::vector<std::pair<NumberFormat, double>> keys = {{plain, 0.0}};
    for (const NumberFormat format : options_.keys) {
      keys.emplace_back(format,
                        measure({.keep = 1.0, .format = KvFormat{format, plain}, .split = {}}));
    }
    std::vector<std::pair<NumberFormat, double>> values = {{plain, 0.0}};
    for (const NumberFormat format : options_.values) {
      values.emplace_back(format,
                          measure({.keep = 1.0, .format = KvFormat{plain, format}, .split = {}}));
    }
    std::vector<Choice>& choices = choices_.emplace_back();
    for (const auto& [keep, keep_loss] : keeps) {
      for (const auto& [key, key_loss] : keys) {
        for (const auto& [value, value_loss] : values) {
          std::vector<LayerRecipe> recipes = Plain();
          recipes[layer] = {.keep = keep, .format = KvFormat{key, value}, .split = {}};
          const LayerRecipe recipe =
              Make(std::move(recipes)).recipe(LayerId{static_cast<int>(layer)});
          choices.push_back({.recipe = recipe,
                             .keep_loss = keep_loss,
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

Compressor Tuner::Make(std::vector<LayerRecipe> layers) const {
  Compressor compressor = MakeCompressor(options_.scorer.empty() ? "none" : options_.scorer);
  compressor.layers = std::move(layers);
  ProtectOutlierKeys(compressor, outliers_);
  return compressor;
}

double Tuner::Divergence(std::size_t layer, const LayerRecipe& recipe) const {
  std::vector<LayerRecipe> layers = Plain();
  layers[layer] = recipe;
  const Compressor compressor = Make(std::move(layers));
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
  return static_cast<double>(bytes.count);
}

TunedProfile Tuner::Judge(std::vector<LayerRecipe> layers, std::string way) const {
  const Compressor compressor = Make(std::move(layers));
  TunedProfile tuned{.profile = {.model = model_.params().name,
                                 .scorer = options_.scorer,
                                 .residual = 0,
                                 .layers = compressor.layers},
                     .way = std::move(way)};
  double bytes = 0.0;
  for (const LayerRecipe& recipe : compressor.layers) {
    bytes += BytesOf(recipe);
  }
  tuned.bytes_ratio =
      bytes / static_cast<double>(
                  PlainCacheBytes(model_.params().geometry(), {}, options_.positions).count);
  for (const std::unique_ptr<DraftEvaluation>& prompt : prompts_) {
    const DraftQuality quality = prompt->Judge(compressor, 1.0, {&options_.draft_length, 1});
    tuned.acceptance +=
        quality.rounds[0].acceptance_length().value_or(0.0) / static_cast<double>(prompts_.size());
  }
  return tuned;
}

TunedProfile Tuner::Best(double bytes_ratio) const {
  const double budget =
      bytes_ratio * static_cast<double>(
                        PlainCacheBytes(model_.params().geometry(), {}, options_.positions).count);
  std::optional<TunedProfile> best;
  const auto consider = [&](TunedProfile tuned) {
    if (!best || tuned.acceptance > best->acceptance) {
      best = std::move(tuned);
    }
  };
  for (const double weight : kKeepWeights) {
    std::vector<std::vector<LayerOption>> layers;
    for (const std::vector<Choice>& choices : choices_) {
      std::vector<LayerOption>& layer = layers.emplace_back();
      for (const Choice& choice : choices) {
        layer.push_back(
            {.loss = weight * choice.keep_loss + choice.format_loss, .bytes = choice.bytes});
      }
    }
    const auto chosen = Allocate(layers, budget);
    if (!chosen) {
      throw UserError("no choice of keep ratios and formats takes as little as " +
                      std::to_string(bytes_ratio) + " of the full cache's bytes");
    }
    std::vector<LayerRecipe> recipes;
    recipes.reserve(chosen->size());
    for (std::size_t i = 0; i < chosen->size(); ++i) {
      recipes.push_back(choices_[i][(*chosen)[i]].recipe);
    }
    std::ostringstream way;
    way << "by layer, drops weighing " << weight;
    consider(Judge(std::move(recipes), way.str()));
  }
  // The same for all layers: of each pair of formats the largest keep ratio that fits.
  for (const NumberFormat keys : options_.keys) {
    for (const NumberFormat values : options_.values) {
      if (Traits(values).bits > Traits(keys).bits) {
        continue;  // values need less
      }
      double keep = 0.0;
      std::vector<LayerRecipe> recipes;
      for (int percent = options_.scorer.empty() ? 100 : 1; percent <= 100; ++percent) {
        const double tried = percent / 100.0;
        std::vector<LayerRecipe> all(
            outliers_.size(), {.keep = tried, .format = KvFormat{keys, values}, .split = {}});
        all = Make(std::move(all)).layers;
        double bytes = 0.0;
        for (const LayerRecipe& recipe : all) {
          bytes += BytesOf(recipe);
        }
        if (bytes <= budget) {
          keep = tried;
          recipes = std::move(all);
        }
      }
      if (keep > 0.0) {
        std::ostringstream way;
        way << "alike, keep " << keep << ", " << Name(keys) << " and " << Name(values);
        consider(Judge(std::move(recipes), way.str()));
      }
    }
  }
  return *best;
}

}  // namespace vericache
