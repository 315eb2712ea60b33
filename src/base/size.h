#pragma once

#include <cstddef>

namespace vericache {

// A count or an index that is not negative, as what containers take.
constexpr std::size_t Size(int n) { return static_cast<std::size_t>(n); }

}  // namespace vericache
