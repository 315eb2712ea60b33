// Searches what each layer of a model should keep, in which formats, under a budget of bytes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compressor/profile.h"
#include "evaluation/draft_quality.h"

namespace vericache {

struct TunerOptions {
  // As in a compressor's name; "": nothing is dropped.
  std::vector<std::string> scorers = {"snapkv"};
  std::vector<double> keeps = {0.5, 0.25, 0.1, 0.05};
  std::vector<NumberFormat> keys = {NumberFormat::kQ8, NumberFormat::kKivi4, NumberFormat::kTurbo4,
                                    NumberFormat::kTurbo3, NumberFormat::kKivi2};
  std::vector<NumberFormat> values = {NumberFormat::kQ8, NumberFormat::kTurbo4,
                                      NumberFormat::kTurbo3, NumberFormat::kTurbo2};
  int draft_length = 25;
  int positions = 4000;  // of the prompt for which bytes are counted
};

struct TunedProfile {
  Profile profile;
  double bytes_ratio = 0.0;  // by count
  double acceptance = 0.0;   // on the tuning prompts
  std::string way;           // how it was found, for people
};

// First the divergence that each option of each layer causes, all other layers being as in the full
// cache, is measured on every prompt in one teacher-forced pass. Options of one layer and of
// several are taken to add up, which makes a choice under a budget a matter of Allocate; that they
// do not quite is why some choices, in which dropping weighs more or less, are then compared by
// what they get accepted. The scorer that does best so is then given the same choice for all
// layers, of formats and of splits over two of them, and what is best of all a refresh at each
// verify.
class Tuner {
 public:
  // `prompts` were made with what the scorer needs; `outliers` is that of ProtectOutlierKeys.
  // `model` and `prompts` must outlive it.
  Tuner(const Model& model, std::span<const std::unique_ptr<DraftEvaluation>> prompts,
        TunerOptions options, const std::function<void(int done, int total)>& on_progress = {});

  // The best profile of at most `bytes_ratio` of the full cache's bytes. Throws UserError where no
  // choice is that small.
  TunedProfile Best(double bytes_ratio) const;

 private:
  // What a layer may be, and what it costs: one more option of keep, keys and values than were
  // asked for, that of the full cache.
  struct Choice {
    LayerRecipe recipe;
    std::size_t keep = 0;  // which of its layer's keeps
    double format_loss = 0.0;
    double bytes = 0.0;
  };
  struct Layer {
    std::vector<Choice> choices;
    std::vector<std::vector<double>> keep_losses;  // [scorer][keep]
  };

  double Divergence(const std::string& scorer, std::size_t layer, const LayerRecipe& recipe) const;
  double BytesOf(const LayerRecipe& recipe) const;
  // The compressor that these recipes make, its keys protected.
  Compressor Make(const std::string& scorer, std::vector<LayerRecipe> layers) const;
  std::vector<LayerRecipe> Plain() const;
  std::vector<LayerRecipe> LargestThatFits(LayerRecipe recipe, double budget) const;
  TunedProfile Judge(const std::string& scorer, std::vector<LayerRecipe> layers,
                     std::string way) const;
  void ByLayer(std::size_t scorer, double budget, std::optional<TunedProfile>& best) const;
  void Alike(const std::string& scorer, double budget, std::optional<TunedProfile>& best) const;
  void Refreshed(std::optional<TunedProfile>& best) const;

  const Model& model_;
  std::span<const std::unique_ptr<DraftEvaluation>> prompts_;
  TunerOptions options_;
  std::vector<bool> outliers_;
  std::vector<Layer> layers_;
};

}  // namespace vericache
