#include "engine/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"

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
  const Bytes store = options.full_store.folder ? Bytes{} : full;
  if (options.policy == Policy::kFull) {
    return {.fast = full, .store = Reloads(options) ? store : Bytes{}};
  }
  Bytes fast;
  for (int i = 0; i < geometry.layers; ++i) {
    const LayerRecipe recipe = compressor.recipe(LayerId{i});
    const int kept =
        compressor.scorer
            ? KeptPositions(positions, recipe.keep.value_or(KeepOf(options, positions)))
            : positions;
    // What is drafted is never more than may still be emitted.
    const int grown = kept + new_tokens;
    if (!recipe.format) {
      fast += LayerBytes(geometry, full_format, grown);
      continue;
    }
    // The tail holds the residual, less than a group more, and the drafts of a round; the slots
    // that were packed from its first page still lie there.
    const int tail =
        std::min(grown, compressor.residual + kGroupSlots + LongestDraft(options) + 1) + kPageSlots;
    const int low = SlotsOf(recipe, compressor.residual, kept).low;
    fast +=
        LayerBytes(geometry, full_format, tail) + LayerBytes(geometry, *recipe.format, grown - low);
    if (recipe.split) {
      // Where it is made anew some of what was added since is of the lesser part, too.
      const int most =
          compressor.refreshes() ? SlotsOf(recipe, compressor.residual, grown).low : low;
      fast += LayerBytes(geometry, recipe.split->low, most);
    }
  }
  return {.fast = fast, .store = store};
}

Bytes CacheRoom(const Model& model, const EngineOptions& options) {
  const Bytes weights{static_cast<std::uint64_t>(
      options.weights_share * static_cast<double>(model.weights().bytes().count))};
  if (weights > options.fast_memory) {
    throw UserError("too little fast memory: the weights' share is " + HumanBytes(weights) +
                    ", the budget " + HumanBytes(options.fast_memory));
  }
  return options.fast_memory - weights;
}

Bytes MemoryForCaches(Transformer& transformer, const EngineOptions& options) {
  // A batch need not verify at once, but it may.
  const int context = transformer.model().params().context;
  const std::int64_t verified =
      std::int64_t{options.batch} * (std::min(LongestDraft(options), context) + 1);
  const int outputs = static_cast<int>(
      std::min<std::int64_t>(Verifies(options.policy) ? verified : options.batch, 1 << 16));
  const int prefilled = std::min(options.prefill_chunk, context);
  const Bytes work = transformer.WorkBytes(prefilled + outputs, outputs);
  const Bytes available = AvailableMemory();
  if (work > available) {
    throw UserError("too little memory for an iteration: " + HumanBytes(work) + " are needed, " +
                    HumanBytes(available) +
                    " are available; a smaller --batch, --prefill-chunk or "
                    "--draft-length needs less");
  }
  return available - work;
}

GroupShape GroupOf(const Model& model, KvFormat format) {
  const CacheGeometry geometry = model.params().geometry();
  return {.layers = geometry.layers, .page_bytes = PageLayout(format, geometry).page_bytes()};
}

SchedulerOptions SchedulerOptionsOf(const Model& model, const EngineOptions& options,
                                    KvFormat format, Bytes memory) {
  SchedulerOptions to{.policy = options.policy,
                      .draft_length = options.draft_length,
                      .adaptive = options.adaptive_draft,
                      .batch = options.batch,
                      .prefill_chunk = options.prefill_chunk,
                      .room = CacheRoom(model, options),
                      .memory = memory,
                      .reloads = Reloads(options),
                      .group = {GroupOf(model, format).bytes()},
                      .group_slots = kPageSlots,
                      .turn = options.turn};
  if (options.link_bandwidth) {
    to.link_bandwidth = *options.link_bandwidth;
  }
  return to;
}

}  // namespace vericache
