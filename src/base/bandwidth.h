#pragma once

namespace vericache {

// Bytes a second that `threads` threads read from memory together, each its own part of a buffer
// that is larger than the caches: the best of several passes. Takes about half a second.
// Throws UserError where there is no memory for the buffer.
double MeasureReadBandwidth(int threads);

}  // namespace vericache
