// A compressed cache made anew after a verify: the verify has read the whole full cache, whose
// pages are still there, and brought new queries, which say what is looked at now.
#pragma once

#include "compressor/compressor.h"

namespace vericache {

// The compressed cache of the positions that `now` has: as many of the prompt's as its own keep
// ratio says, and all that came after. The prompt's are chosen by the blend of the scores in
// `state` with the attention of the last queries; where the scorer accumulates, by the sum, which
// `state` then has. now.taps holds the queries. Throws UserError where the pool has no room.
KvCache Refresh(const Compressor& compressor, RefreshState& state, const PromptView& now,
                double keep, PagePool& pool);

}  // namespace vericache
