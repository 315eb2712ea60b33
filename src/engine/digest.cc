#include "engine/digest.h"

#include <xxhash.h>

namespace vericache {

void LogitsDigest::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

LogitsDigest::LogitsDigest() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }

void LogitsDigest::Add(std::span<const float> logits) {
  XXH3_64bits_update(state_.get(), logits.data(), logits.size_bytes());
}

std::uint64_t LogitsDigest::value() const { return XXH3_64bits_digest(state_.get()); }

}  // namespace vericache
