#pragma once

#include "base/types.h"
#include "compressor/compressor.h"
#include "engine/engine.h"

namespace vericache {

// The most that the caches of a request can take.
struct CacheNeed {
  Bytes fast;   // in fast memory
  Bytes store;  // in the full store
};

// For a prompt of `positions` tokens of which up to `new_tokens` follow.
CacheNeed PlanCaches(const CacheGeometry& geometry, KvFormat full_format,
                     const EngineOptions& options, const Compressor& compressor, int positions,
                     int new_tokens);

}  // namespace vericache
