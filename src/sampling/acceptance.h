#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"

namespace vericache {

// The acceptance length: how many drafted tokens equal what the verify sampled in their place,
// counted up to the first that does not. `verified` has at least as many tokens as `drafted`;
// verified[i] is the token that follows drafted[i - 1].
inline std::size_t AcceptanceLength(std::span<const TokenId> drafted,
                                    std::span<const TokenId> verified) {
  std::size_t accepted = 0;
  while (accepted < drafted.size() && drafted[accepted] == verified[accepted]) {
    ++accepted;
  }
  return accepted;
}

}  // namespace vericache
