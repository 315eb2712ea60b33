// What kvpress gave (tests/reference/kvpress_scores.py), and our scorers on the same prompt.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/taps.h"
#include "compressor/compressor.h"
#include "model/model.h"
#include "model/repeat.h"
#include "nlohmann/json.hpp"

namespace vericache {

// The numbers of a file of tests/reference.
nlohmann::json ReadReference(const std::string& file);

// The tokens of a fixture.
std::vector<TokenId> TokensOf(const nlohmann::json& fixture);

// A prompt's full cache in float32, and what scorers ask for.
class ScoredPrompt {
 public:
  ScoredPrompt(const Model& model, std::span<const TokenId> tokens, const TapNeeds& needs,
               const RepeatPrompt& repeat = {});

  LayerScores Scores(const TokenScorer& scorer, LayerId layer) const;

 private:
  const Model& model_;
  int positions_;
  PagePool pool_;
  KvCache full_;
  Taps taps_;
};

// The share of `expected`, positions per KV head, that `actual` has too.
double Overlap(const LayerSelection& expected, const LayerSelection& actual);

}  // namespace vericache
