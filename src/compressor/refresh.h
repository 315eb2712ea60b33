// A compressed cache made anew after a verify: the verify has read the whole full cache, whose
// pages are still there, and brought new queries, which say what is looked at now.
#pragma once

#include "compressor/compressor.h"

namespace vericache {

// The compressed cache of the positions that `now` has: as many as the keep ratio says of the
// prompt, and as many as came after. The latter are kept, and the prompt's are chosen by the blend
// of the scores in `state` with the attention of the last queries; where the scorer accumulates, by
// the sum, which `state` then has; where a network scores all positions, all are chosen by that.
// now.taps holds the queries, or scores. Throws UserError where the pool has no room.
KvCache Refresh(const Compressor& compressor, RefreshState& state, const PromptView& now,
                double keep, PagePool& pool);

}  // namespace vericache
