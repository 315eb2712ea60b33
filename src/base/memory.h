#pragma once

#include <string>

#include "base/types.h"

namespace vericache {

// Memory that this process may still take: the least of what the system says is available, what
// its control group leaves and what its address-space limit leaves. No limit found: the largest
// number.
Bytes AvailableMemory();

// Throws UserError, saying how much is needed for `what` and how much there is, where less than
// `needed` is available.
void RequireMemory(Bytes needed, const std::string& what);

}  // namespace vericache
