#include "engine/memory_plan.h"

#include <algorithm>

namespace vericache {

bool Reloads(const EngineOptions& options) {
  return options.full_store.folder.has_value() || options.link_bandwidth.has_value();
}

int LongestDraft(const EngineOptions& options) {
  return Reloads(options) ? LookAhead(options.draft_length) - 1 : options.draft_length;
}

CacheNeed PlanCaches(const CacheGeometry& geometry, KvFormat full_format,
                     const EngineOptions& options, const Compressor& compressor, int positions,
                     int new_tokens) {
  const Bytes full = PlainCacheBytes(geometry, full_format, positions + new_tokens);
  if (options.policy == Policy::kFull) {
    return {.fast = full, .store = {}};
  }
  // What is drafted is never more than may still be emitted.
  const int grown =
      (compressor.scorer ? KeptPositions(positions, options.keep) : positions) + new_tokens;
  const Bytes store = options.full_store.folder ? Bytes{} : full;
  if (!compressor.format) {
    return {.fast = PlainCacheBytes(geometry, full_format, grown), .store = store};
  }
  // The tail holds the residual, less than a group more, and the drafts of a round; the slots that
  // were packed from its first page still lie there.
  const int tail =
      std::min(grown, compressor.residual + kGroupSlots + LongestDraft(options) + 1) + kPageSlots;
  return {.fast = PlainCacheBytes(geometry, full_format, tail) +
                  PlainCacheBytes(geometry, *compressor.format, grown),
          .store = store};
}

}  // namespace vericache
