// What rows cost on this machine, learned from the iterations that ran.
#pragma once

#include <array>

namespace vericache {

// Seconds of an iteration as a sum: a part of its own (weights are read once), and one for each
// draft row, each full cache that is read, and each row on it. Where reading binds, a row on a full
// cache costs nothing beside the cache; where computation does, it costs as much as the cache: the
// roofline of the machine as it is, whatever its peaks. Recursive least squares with forgetting
// (Haykin, Adaptive Filter Theory, chapter 10).
class IterationCosts {
 public:
  IterationCosts();

  // An iteration of `drafts` draft rows, and of `verifies` requests that had `rows` rows on their
  // full caches together, took `seconds`.
  void Observe(int drafts, int verifies, int rows, double seconds);

  // Both kinds of iteration were seen often enough to tell their costs apart.
  bool known() const { return with_drafts_ >= kEnough && with_verifies_ >= kEnough; }

  // What a round of `draft_length` drafts costs a request in a batch of `batch`: its drafts, its
  // verify, and its share of what iterations cost by themselves. 0 drafts: a token on the full
  // cache.
  double RoundSeconds(int draft_length, int batch) const;

 private:
  static constexpr int kTerms = 4;
  static constexpr int kEnough = 6;

  std::array<double, kTerms> costs_{};
  std::array<std::array<double, kTerms>, kTerms> covariance_{};
  int with_drafts_ = 0;
  int with_verifies_ = 0;
};

}  // namespace vericache
