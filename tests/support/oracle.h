// libllama's logits beside ours.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "kvcache/format.h"
#include "model/model.h"

namespace vericache {

// Logits of every position, [position][vocabulary], by libllama: without flash attention, weights
// in the file's own order, a KV cache of f32 or f16.
std::vector<float> OracleLogits(const std::filesystem::path& path, std::span<const TokenId> tokens,
                                NumberFormat cache);

// The same from our full-cache forward pass, in chunks of `chunk` rows.
std::vector<float> OurLogits(const Model& model, std::span<const TokenId> tokens,
                             NumberFormat cache, int chunk);

struct LogitsComparison {
  int positions = 0;
  double largest = 0.0;  // difference
  double root_mean_square = 0.0;
  double spread = 0.0;  // standard deviation of the oracle's logits
  // Positions where the largest logit is another token's, and the oracle's widest margin between
  // its first and second token there: near-ties alone may tip over.
  int other_argmax = 0;
  double widest_margin = 0.0;

  std::string Describe() const;
};

LogitsComparison CompareLogits(std::span<const float> oracle, std::span<const float> ours,
                               int vocabulary);

}  // namespace vericache
