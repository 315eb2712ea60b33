#include "evaluation/machine_costs.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"

namespace vericache {
namespace {

constexpr int kSlots = 4096;
constexpr int kDrafts = 2;  // requests whose caches are read at once, more than processors cache

std::unique_ptr<KvCache> MakeCache(PagePool& pool, const CacheGeometry& geometry, int slots) {
  auto cache = std::make_unique<KvCache>(pool, PageKind::kTransient, geometry, KvFormat{});
  if (!cache->Extend(slots)) {
    throw UserError("too little memory for the caches");
  }
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same at every run
  std::normal_distribution<float> normal;
  std::vector<float> numbers(Size(geometry.head_dim) + 64);
  std::ranges::generate(numbers, [&] { return normal(random); });
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int slot = 0; slot < slots; ++slot) {
      for (int head = 0; head < geometry.kv_heads; ++head) {
        const auto row = std::span(numbers).subspan(random() % 64, Size(geometry.head_dim));
        cache->Write(LayerId{layer}, slot, head, row, row, slot);
      }
    }
  }
  return cache;
}

// The median time of an iteration in which each of the caches gets `rows` rows.
double IterationSeconds(Transformer& transformer,
                        const std::vector<std::unique_ptr<KvCache>>& caches, int rows,
                        AttentionUse use) {
  constexpr int kTimes = 7;
  std::vector<double> times;
  for (int i = 0; i < kTimes; ++i) {
    std::vector<AttentionTask> tasks;
    std::vector<Position> positions;
    std::vector<int> outputs;
    for (const auto& cache : caches) {
      const int slots = cache->tail_slots(LayerId{0});
      tasks.push_back({.cache = cache.get(),
                       .first_row = static_cast<int>(positions.size()),
                       .rows = rows,
                       .first_position = slots,
                       .use = use});
      if (!cache->Extend(rows)) {
        throw UserError("too little memory for the caches");
      }
      for (int row = 0; row < rows; ++row) {
        outputs.push_back(static_cast<int>(positions.size()));
        positions.push_back(Position{slots + row});
      }
    }
    const std::vector<TokenId> tokens(positions.size());
    const auto start = Clock::now();
    transformer.Forward({.tokens = tokens,
                         .positions = positions,
                         .outputs = outputs,
                         .tasks = tasks,
                         .exact = use == AttentionUse::kFull});
    times.push_back(SecondsSince(start));
    for (const auto& cache : caches) {
      cache->Truncate(rows);
    }
  }
  std::ranges::nth_element(times, times.begin() + kTimes / 2);
  return times[kTimes / 2];
}

}  // namespace

MachineCosts MeasureCosts(Transformer& transformer) {
  const ModelParams& params = transformer.model().params();
  const CacheGeometry geometry = params.geometry();
  const int slots = std::min(kSlots, params.context - MachineCosts::kRows);
  PagePool pool({std::numeric_limits<std::uint64_t>::max()});
  std::vector<std::unique_ptr<KvCache>> small;
  std::vector<std::unique_ptr<KvCache>> large;
  for (int i = 0; i < kDrafts; ++i) {
    small.push_back(MakeCache(pool, geometry, 1));
    large.push_back(MakeCache(pool, geometry, slots));
  }
  const auto bytes = [&](std::size_t caches) {
    return static_cast<double>(caches) * Count(PlainCacheBytes(geometry, {}, slots));
  };
  // Differences of measured times: where noise is larger than they are, it is all that is left.
  const auto rate = [](double read, double with, double without) {
    return read / std::max(with - without, 0.1 * with);
  };
  const double drafts = IterationSeconds(transformer, small, 1, AttentionUse::kDraft);
  const double long_drafts = IterationSeconds(transformer, large, 1, AttentionUse::kDraft);
  small.resize(1);
  large.resize(1);
  const double verify =
      IterationSeconds(transformer, small, MachineCosts::kRows, AttentionUse::kFull);
  const double long_verify =
      IterationSeconds(transformer, large, MachineCosts::kRows, AttentionUse::kFull);
  const double row = std::max(verify - drafts, 0.1 * verify) / (MachineCosts::kRows - kDrafts);
  return {.iteration_s = std::max(0.0, drafts - kDrafts * row),
          .row_s = row,
          .draft_cache_bytes_per_s = rate(bytes(kDrafts), long_drafts, drafts),
          .verify_cache_bytes_per_s = rate(bytes(1), long_verify, verify)};
}

}  // namespace vericache
