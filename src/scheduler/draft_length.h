// How many tokens a round should draft.
#pragma once

namespace vericache {

// A request's chance that a drafted token is accepted, from its rounds. Taken as the same for every
// token of a round, as in Leviathan et al. 2023 (arXiv 2211.17192, section 3.1), the accepted
// tokens of a round are geometric, cut at the draft length, and the maximum-likelihood estimate is
// accepted / (accepted + rejections), at most one rejection a round. Older rounds fade, so that it
// follows the text; it starts from a prior of a few tokens.
class AcceptanceEstimate {
 public:
  void Observe(int drafted, int accepted);
  // In (0, 1).
  double rate() const { return accepted_ / (accepted_ + rejected_); }

 private:
  double accepted_ = 7.5;
  double rejected_ = 0.5;
};

// Expected tokens that a round of `draft_length` emits, the verify's own included:
// (1 - rate^(x + 1)) / (1 - rate), equation (1) of arXiv 2211.17192.
double ExpectedTokens(double rate, int draft_length);

// What a round costs, in draft iterations.
struct RoundCost {
  double verify = 1.0;  // the iteration that verifies
  double reload = 0.0;  // a round cannot come around faster: the link's time for every request's
                        // reload
};

// The draft length in [1, most] with the most expected tokens per time of a round, which is
// max(x + verify, reload). The smaller one of equally good ones.
int BestDraftLength(double rate, const RoundCost& cost, int most);

}  // namespace vericache
