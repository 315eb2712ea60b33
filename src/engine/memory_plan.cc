#include "engine/memory_plan.h"

#include <algorithm>

namespace vericache {

CacheNeed PlanCaches(const CacheGeometry& geometry, KvFormat full_format,
                     const EngineOptions& options, const Compressor& compressor, int positions,
                     int new_tokens) {
  const Bytes full = PlainCacheBytes(geometry, full_format, positions + new_tokens);
  if (options.policy == Policy::kFull) {
    return {.fast = full, .store = {}};
  }
  const int kept = (compressor.scorer ? KeptPositions(positions, options.keep) : positions);
  const int grown = kept + new_tokens + options.draft_length;
  if (!compressor.format) {
    return {.fast = PlainCacheBytes(geometry, full_format, grown), .store = full};
  }
  // The tail holds the residual, less than a group more, and the drafts of a round; the slots that
  // were packed from its first page still lie there.
  const int tail =
      std::min(grown, compressor.residual + kGroupSlots + options.draft_length + 1) + kPageSlots;
  return {.fast = PlainCacheBytes(geometry, full_format, tail) +
                  PlainCacheBytes(geometry, *compressor.format, grown),
          .store = full};
}

}  // namespace vericache
