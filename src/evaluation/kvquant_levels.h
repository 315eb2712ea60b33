#pragma once

#include <vector>

#include "kvcache/kvquant.h"

namespace vericache {

// Finds the levels of least squared error for numbers between -1 and 1: k-means in one dimension
// (Lloyd 1982, "Least squares quantization in PCM"), as KVQuant's non-uniform datatypes are found,
// over a histogram.
class LevelSearch {
 public:
  static constexpr int kBins = 4096;

  void Add(float number);

  // Begins with kNormalLevels; a level that is nearest to no number stays where it is.
  KvQuantLevelSet Levels() const;

 private:
  KvQuantLevels LevelsOf(int bits) const;

  std::vector<double> counts_ = std::vector<double>(kBins);
};

}  // namespace vericache
