#include "evaluation/kvquant_levels.h"

#include <algorithm>
#include <cmath>

namespace vericache {
namespace {

double CenterOf(std::size_t bin) {
  return (static_cast<double>(bin) + 0.5) * 2.0 / LevelSearch::kBins - 1.0;
}

}  // namespace

void LevelSearch::Add(float number) {
  const double bin = std::floor((static_cast<double>(number) + 1.0) / 2.0 * kBins);
  counts_[static_cast<std::size_t>(std::clamp(bin, 0.0, kBins - 1.0))] += 1.0;
}

KvQuantLevels LevelSearch::LevelsOf(int bits) const {
  constexpr int kMostIterations = 1000;
  constexpr double kSettled = 1e-6;  // far below the 1/127 that levels are rounded to
  const std::size_t count = std::size_t{1} << static_cast<unsigned>(bits);
  const KvQuantLevels& begin = kNormalLevels[static_cast<std::size_t>(bits - kKvQuantLeastBits)];
  std::vector<double> levels(count);
  std::transform(begin.begin(), begin.begin() + static_cast<std::ptrdiff_t>(count), levels.begin(),
                 [](std::uint8_t level) { return (level - 128) / 127.0; });
  double moved = 1.0;
  for (int i = 0; i < kMostIterations && moved > kSettled; ++i) {
    std::vector<double> sums(count);
    std::vector<double> weights(count);
    std::size_t nearest = 0;
    for (std::size_t bin = 0; bin < counts_.size(); ++bin) {
      while (nearest + 1 < count && 2.0 * CenterOf(bin) > levels[nearest] + levels[nearest + 1]) {
        ++nearest;
      }
      sums[nearest] += counts_[bin] * CenterOf(bin);
      weights[nearest] += counts_[bin];
    }
    moved = 0.0;
    for (std::size_t level = 0; level < count; ++level) {
      const double mean = weights[level] > 0.0 ? sums[level] / weights[level] : levels[level];
      moved = std::max(moved, std::abs(mean - levels[level]));
      levels[level] = mean;
    }
  }
  KvQuantLevels bytes{};
  std::ranges::transform(levels, bytes.begin(), [](double level) {
    return static_cast<std::uint8_t>(std::lround(127.0 * level) + 128);
  });
  return bytes;
}

KvQuantLevelSet LevelSearch::Levels() const { return {LevelsOf(2), LevelsOf(3), LevelsOf(4)}; }

}  // namespace vericache
