#pragma once

#include "base/types.h"
#include "compressor/compressor.h"
#include "engine/engine_options.h"
#include "model/transformer.h"
#include "scheduler/scheduler.h"

namespace vericache {

// What the budget of fast memory leaves for caches. Throws UserError where the weights' share is
// more.
Bytes CacheRoom(const Model& model, const EngineOptions& options);

// The machine's memory without what an iteration works in. Throws UserError where that alone is too
// much.
Bytes MemoryForCaches(Transformer& transformer, const EngineOptions& options);

// What a store keeps of a full cache at a time.
GroupShape GroupOf(const Model& model, KvFormat full_format);

// `memory`: of MemoryForCaches.
SchedulerOptions SchedulerOptionsOf(const Model& model, const EngineOptions& options,
                                    KvFormat full_format, Bytes memory);

// The longest draft that a round may have.
int LongestDraft(const EngineOptions& options);

// Whether full caches cross a link before each verify; otherwise they are read where they lie.
bool Reloads(const EngineOptions& options);

// The most that the caches of a request can take, transient pages aside.
struct CacheNeed {
  Bytes fast;   // in fast memory, for as long as it runs
  Bytes store;  // in the machine's memory besides
};

// For a prompt of `positions` tokens of which up to `new_tokens` follow.
CacheNeed PlanCaches(const CacheGeometry& geometry, KvFormat full_format,
                     const EngineOptions& options, const Compressor& compressor, int positions,
                     int new_tokens);

}  // namespace vericache
