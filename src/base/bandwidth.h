#pragma once

#include <cstdint>

#include "base/types.h"

namespace vericache {

// Bytes a second that `threads` threads read together, each its own part of a buffer of `bytes`:
// the best of several passes. 256 MiB is more than what caches hold; a smaller buffer is read again
// and again. Takes about half a second. Throws UserError where there is no memory for the buffer.
double MeasureReadBandwidth(int threads, Bytes bytes = {std::uint64_t{256} << 20U});

}  // namespace vericache
