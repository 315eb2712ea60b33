#include "support/kvpress_fixture.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "model/rope.h"
#include "model/transformer.h"

namespace vericache {

nlohmann::json ReadReference(const std::string& file) {
  std::ifstream in(std::string(VERICACHE_SOURCE_DIR "/tests/reference/") + file);
  return nlohmann::json::parse(in);
}

std::vector<TokenId> TokensOf(const nlohmann::json& fixture) {
  std::vector<TokenId> tokens;
  for (const int token : fixture.at("tokens")) {
    tokens.push_back(TokenId{token});
  }
  return tokens;
}

ScoredPrompt::ScoredPrompt(const Model& model, std::span<const TokenId> tokens,
                           const TapNeeds& needs, const RepeatPrompt& repeat)
    : model_(model),
      positions_(static_cast<int>(tokens.size())),
      pool_({std::uint64_t{1} << 32U}),
      full_(pool_, PageKind::kResident, model.params().geometry(),
            {.keys = NumberFormat::kF32, .values = NumberFormat::kF32}),
      taps_(needs, model.params().geometry(), model.params().heads, positions_, 1) {
  Transformer transformer(model, /*threads=*/1);
  constexpr int kChunk = 48;
  for (int first = 0; first < positions_; first += kChunk) {
    const int rows = std::min(kChunk, positions_ - first);
    if (!full_.Extend(rows)) {
      throw std::runtime_error("pool");
    }
    std::vector<Position> positions;
    for (int i = 0; i < rows; ++i) {
      positions.push_back(Position{first + i});
    }
    const AttentionTask task{
        .cache = &full_, .first_row = 0, .rows = rows, .first_position = first, .taps = &taps_};
    transformer.Forward(
        {.tokens = tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)),
         .positions = positions,
         .outputs = {},
         .tasks = std::span(&task, 1)});
  }
  if (needs.repeated_chunk > 0) {
    RecordRepetition(transformer, full_, tokens, repeat, needs.repeated_chunk, kChunk, taps_);
  }
}

LayerScores ScoredPrompt::Scores(const TokenScorer& scorer, LayerId layer) const {
  const std::vector<float> rotation =
      AverageRotation(model_, Position{positions_}, scorer.future_positions());
  return scorer.Scores({.full = full_,
                        .taps = &taps_,
                        .positions = positions_,
                        .heads = model_.params().heads,
                        .future_rotation = rotation},
                       layer);
}

double Overlap(const LayerSelection& expected, const LayerSelection& actual) {
  std::size_t common = 0;
  std::size_t all = 0;
  for (std::size_t head = 0; head < expected.size(); ++head) {
    all += expected[head].size();
    common += static_cast<std::size_t>(std::ranges::count_if(expected[head], [&](int position) {
      return std::ranges::binary_search(actual.at(head), position);
    }));
  }
  return static_cast<double>(common) / static_cast<double>(all);
}

}  // namespace vericache
