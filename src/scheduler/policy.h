#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vericache {

// How tokens are made. full: on the full cache, one at a time. lossy: drafts on the compressed
// cache are emitted unverified, a baseline. vericache: drafts are verified on the full cache, each
// request at an iteration of its own. lockstep: likewise, but all requests verify at the same
// iteration, an ablation. auto: as vericache, in rounds as long as pay, which may be of no drafts
// at all: then a token is computed on the full cache.
enum class Policy { kFull, kLossy, kVeriCache, kLockstep, kAuto };

constexpr bool Verifies(Policy policy) {
  return policy == Policy::kVeriCache || policy == Policy::kLockstep || policy == Policy::kAuto;
}

std::string_view Name(Policy policy);
// nullopt for an unknown name.
std::optional<Policy> ParsePolicy(std::string_view name);
// "full, lossy, …", for messages.
std::string PolicyNames();

}  // namespace vericache
