#include "kvcache/rope_table.h"

#include "base/check.h"

namespace vericache {

RopeTable::RopeTable(int dims, bool neox, Angles coarse, Angles fine)
    : pairs_(dims / 2), neox_(neox), coarse_(std::move(coarse)), fine_(std::move(fine)) {
  const auto pairs = static_cast<std::size_t>(pairs_);
  Check(coarse_.cosines.size() == coarse_.sines.size() && coarse_.cosines.size() % pairs == 0 &&
            fine_.cosines.size() == pairs * kFine && fine_.sines.size() == pairs * kFine,
        "as many angles as pairs and positions");
}

int RopeTable::positions() const {
  return static_cast<int>(coarse_.cosines.size()) / pairs_ * kStep;
}

std::pair<float, float> RopeTable::At(int pair, int position) const {
  const auto step = static_cast<std::size_t>(position / kStep * pairs_ + pair);
  const auto rest = static_cast<std::size_t>(pair * kFine + position % kStep);
  const float c = coarse_.cosines[step];
  const float s = coarse_.sines[step];
  const float fine_c = fine_.cosines[rest];
  const float fine_s = fine_.sines[rest];
  return {c * fine_c - s * fine_s, s * fine_c + c * fine_s};
}

void RopeTable::Turn(std::span<float> row, int position) const {
  for (int pair = 0; pair < pairs_; ++pair) {
    const auto [c, s] = At(pair, position);
    const auto [first, second] = channels(pair);
    float& x = row[static_cast<std::size_t>(first)];
    float& y = row[static_cast<std::size_t>(second)];
    const float turned = x * c - y * s;
    y = x * s + y * c;
    x = turned;
  }
}

void RopeTable::TurnBack(std::span<float> row, int position) const {
  for (int pair = 0; pair < pairs_; ++pair) {
    const auto [c, s] = At(pair, position);
    const auto [first, second] = channels(pair);
    float& x = row[static_cast<std::size_t>(first)];
    float& y = row[static_cast<std::size_t>(second)];
    const float inverse = 1.0F / (c * c + s * s);
    const float back = (x * c + y * s) * inverse;
    y = (y * c - x * s) * inverse;
    x = back;
  }
}

}  // namespace vericache
