#pragma once

#include "server/answer_stream.h"

namespace vericache {

// The token's log probability under the model's own logits, before temperature
// and filters, and those of the `top` most likely ones.
TokenLogprob LogprobOf(const EmittedToken& emitted, int top);

}  // namespace vericache
