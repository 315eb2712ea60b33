// RoPE of any position in little memory, for formats that hold keys before it: a rotation by a
// position is the rotation by a multiple of kStep and then by what is left (angles add).
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/number_format.h"

namespace vericache {

class RopeTable {
 public:
  static constexpr int kStep = 64;
  // Positions of the fine table: those that a group needs which begins anywhere within a step.
  static constexpr int kFine = kStep + kGroupSlots;

  struct Angles {
    std::vector<float> cosines;
    std::vector<float> sines;
  };

  // Channels turn in pairs: (i, i + dims / 2) if `neox`, else (2 i, 2 i + 1), of the first `dims`
  // ones. `coarse`: of positions 0, kStep, 2 kStep, …, [position][pair], with what RoPE multiplies
  // by besides (YaRN). `fine`: of positions below kFine, [pair][position], pure.
  RopeTable(int dims, bool neox, Angles coarse, Angles fine);

  // Rotates a row, in place, by a position below positions(); and back.
  void Turn(std::span<float> row, int position) const;
  void TurnBack(std::span<float> row, int position) const;

  int pairs() const { return pairs_; }
  int positions() const;
  // The channels of a pair.
  std::pair<int, int> channels(int pair) const {
    return neox_ ? std::pair(pair, pair + pairs_) : std::pair(2 * pair, 2 * pair + 1);
  }
  const Angles& coarse() const { return coarse_; }
  const Angles& fine() const { return fine_; }

 private:
  // Cosine and sine of a pair at a position.
  std::pair<float, float> At(int pair, int position) const;

  int pairs_;
  bool neox_;
  Angles coarse_;
  Angles fine_;
};

}  // namespace vericache
