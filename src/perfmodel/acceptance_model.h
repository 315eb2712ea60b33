// How many drafted tokens a verify accepts.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vericache {

// Accepted tokens of a round as a function of its draft length: either geometric, every token with
// the same chance, or a measured table between whose points it interpolates.
class AcceptanceModel {
 public:
  // Every drafted token is accepted with `chance` in [0, 1) if those before it were.
  static AcceptanceModel FromChance(double chance);

  // The paper's gamma: the share of `draft_length` drafted tokens that is accepted, in [0, 1).
  static AcceptanceModel FromShare(double share, int draft_length);

  // "0.85", a share at `draft_length`; or a JSON file as `vericache acceptance --json` writes it,
  // of which the means over all results at each x are taken. Throws UserError.
  static AcceptanceModel Parse(const std::string& text, int draft_length);

  // Accepted tokens of a round of `draft_length` >= 0, on average.
  double Accepted(int draft_length) const;

  // The chance that, of the geometric model nearest to it at `draft_length`.
  double Chance(int draft_length) const;

 private:
  double chance_ = 0.0;
  std::vector<std::pair<int, double>> table_;  // ascending draft lengths; empty: geometric
};

}  // namespace vericache
