// RoPE in float64, and a RopeTable of it.
#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/rope_table.h"

namespace vericache::testing {

inline double RopeAngle(int pair, int pairs, int position) {
  return position * std::pow(10000.0, -static_cast<double>(pair) / pairs);
}

// Rotates the first `dims` channels of a row by `turns` times its position's angles, and multiplies
// them by `amplitude`.
inline std::vector<double> RotatedRow(std::span<const float> row, int dims, bool neox, int position,
                                      double turns, double amplitude = 1.0) {
  std::vector<double> rotated(row.begin(), row.end());
  const int pairs = dims / 2;
  for (int pair = 0; pair < pairs; ++pair) {
    const double angle = turns * RopeAngle(pair, pairs, position);
    const auto first = static_cast<std::size_t>(neox ? pair : 2 * pair);
    const auto second = static_cast<std::size_t>(neox ? pair + pairs : 2 * pair + 1);
    const double x = row[first];
    const double y = row[second];
    rotated[first] = amplitude * (x * std::cos(angle) - y * std::sin(angle));
    rotated[second] = amplitude * (x * std::sin(angle) + y * std::cos(angle));
  }
  return rotated;
}

inline std::shared_ptr<const RopeTable> MakeRopeTable(int dims, bool neox, int positions,
                                                      double amplitude = 1.0) {
  const int pairs = dims / 2;
  RopeTable::Angles coarse;
  for (int position = 0; position < positions; position += RopeTable::kStep) {
    for (int pair = 0; pair < pairs; ++pair) {
      const double angle = RopeAngle(pair, pairs, position);
      coarse.cosines.push_back(static_cast<float>(amplitude * std::cos(angle)));
      coarse.sines.push_back(static_cast<float>(amplitude * std::sin(angle)));
    }
  }
  RopeTable::Angles fine;
  for (int pair = 0; pair < pairs; ++pair) {
    for (int position = 0; position < RopeTable::kFine; ++position) {
      const double angle = RopeAngle(pair, pairs, position);
      fine.cosines.push_back(static_cast<float>(std::cos(angle)));
      fine.sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return std::make_shared<const RopeTable>(dims, neox, std::move(coarse), std::move(fine));
}

}  // namespace vericache::testing
