#include "attention/batch_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/size.h"
#include "kvcache/rotation.h"

namespace vericache {
namespace {

// A block is split by chunks where there are fewer blocks than this many per thread.
constexpr int kBlocksPerThread = 8;

// Where a task's queries before RoPE are recorded; nullptr: nowhere.
QueryStatistics* StatisticsOf(const AttentionTask& task) {
  const bool wanted = task.taps != nullptr && task.taps->statistics && !task.taps->prompt_is_done;
  return wanted ? &*task.taps->statistics : nullptr;
}

// Where what the rows of a task attend to is recorded; nullptr: nowhere.
KeyAttention* AttentionOf(const AttentionTask& task) {
  if (task.taps == nullptr || task.taps->prompt_is_done) {
    return nullptr;
  }
  std::optional<KeyAttention>& wanted =
      task.taps->repeated ? task.taps->repeated : task.taps->attention;
  return wanted ? &*wanted : nullptr;
}

void ForEachRow(std::span<float> rows, std::size_t dim, void (*apply)(std::span<float> row)) {
  for (std::size_t first = 0; first < rows.size(); first += dim) {
    apply(rows.subspan(first, dim));
  }
}

}  // namespace

BatchAttention::BatchAttention(const AttentionKernel& kernel, const AttentionKernel& draft_kernel,
                               const CacheGeometry& geometry, int heads, int threads)
    : kernel_(kernel),
      draft_kernel_(draft_kernel),
      geometry_(geometry),
      group_(heads / geometry.kv_heads),
      spaces_(Size(threads)) {
  Check(heads % geometry.kv_heads == 0 && group_ <= kMaxQueryBlock, "query heads per KV head");
  Check(geometry.head_dim % 16 == 0, "whole vectors per head");
  for (ThreadSpace& space : spaces_) {
    space.workspace.resize(WorkspaceFloats(geometry.head_dim));
    space.queries.resize(Size(kMaxQueryBlock * geometry.head_dim));
    space.rotated_queries.resize(space.queries.size());
    space.visible.resize(Size(kMaxQueryBlock));
    space.part.resize(PartialFloats(kMaxQueryBlock));
    space.total.resize(PartialFloats(kMaxQueryBlock));
  }
}

void BatchAttention::Begin(std::span<const AttentionTask> tasks, int total_rows) {
  tasks_.assign(tasks.begin(), tasks.end());
  total_rows_ = total_rows;
}

void BatchAttention::Append(LayerId layer, const float* queries, const float* keys,
                            const float* values, int thread, int threads) {
  if (thread == 0) {
    Plan(layer, threads);
    Record(layer, queries);
  }
  const std::size_t dim = Size(geometry_.head_dim);
  for (const AttentionTask& task : tasks_) {
    const int base = task.cache->tail_slots(layer) - task.rows;
    const int first = task.rows * thread / threads;
    const int last = task.rows * (thread + 1) / threads;
    for (int row = first; row < last; ++row) {
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        const std::size_t at =
            (Size(task.first_row + row) * Size(geometry_.kv_heads) + Size(head)) * dim;
        task.cache->Write(layer, base + row, head, {keys + at, dim}, {values + at, dim},
                          task.first_position + row);
      }
    }
  }
}

void BatchAttention::Plan(LayerId layer, int threads) noexcept {
  chunks_.clear();
  blocks_.clear();
  items_.clear();
  std::size_t parts = 0;
  const int block_rows = std::max(1, kMaxQueryBlock / group_);
  for (const AttentionTask& task : tasks_) {
    const int list = static_cast<int>(chunks_.size());
    const auto add_chunks = [this](const SegmentView& segment, int part) {
      for (int begin = segment.begin; begin < segment.end;) {
        const int end = std::min(segment.end, (begin / kChunkSlots + 1) * kChunkSlots);
        chunks_.push_back({.part = part, .begin = begin, .end = end});
        begin = end;
      }
    };
    for (int part = 0; part < task.cache->packed_parts(layer); ++part) {
      add_chunks(task.cache->packed_view(layer, part), part);
    }
    const SegmentView tail = task.cache->tail_view(layer);
    Check(tail.slots() >= task.rows, "the rows' slots were added to the tail");
    add_chunks(tail, kTail);
    const int chunks = static_cast<int>(chunks_.size()) - list;
    const int blocks = (task.rows + block_rows - 1) / block_rows * geometry_.kv_heads;
    const bool split = blocks < kBlocksPerThread * threads;

    for (int first = 0; first < task.rows; first += block_rows) {
      const int rows = std::min(block_rows, task.rows - first);
      const int visible = tail.end - task.rows + first + rows;
      int seen = chunks;
      while (seen > 0 && chunks_[Size(list + seen - 1)].part == kTail &&
             chunks_[Size(list + seen - 1)].begin >= visible) {
        --seen;
      }
      for (int head = 0; head < geometry_.kv_heads; ++head) {
        const int index = static_cast<int>(blocks_.size());
        Block& block = blocks_.emplace_back(&task, head, first, rows);
        block.chunks = seen;
        block.left.store(seen, std::memory_order_relaxed);
        if (!split || seen == 1) {
          items_.push_back(
              {.block = index, .first_chunk = 0, .last_chunk = seen, .chunk_list = list});
          continue;
        }
        block.parts = parts;
        parts += PartialFloats(rows * group_) * Size(seen);
        for (int c = 0; c < seen; ++c) {
          items_.push_back(
              {.block = index, .first_chunk = c, .last_chunk = c + 1, .chunk_list = list});
        }
      }
    }
  }
  if (parts_.size() < parts) {
    parts_.resize(parts);
  }
  next_item_.store(0, std::memory_order_relaxed);
}

void BatchAttention::Attend(LayerId layer, const float* queries, float* out, int thread,
                            int threads) {
  Check(Size(threads) <= spaces_.size(), "as many threads as announced");
  if (thread == 0) {
    const std::size_t row = Size(group_ * geometry_.kv_heads * geometry_.head_dim);
    int covered = 0;
    for (const AttentionTask& task : tasks_) {
      covered = std::max(covered, task.first_row + task.rows);
    }
    std::fill(out + Size(covered) * row, out + Size(total_rows_) * row, 0.0F);
  }
  for (;;) {
    const int index = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (Size(index) >= items_.size()) {
      return;
    }
    const Item& item = items_[Size(index)];
    ThreadSpace& space = spaces_[Size(thread)];
    const auto start = std::chrono::steady_clock::now();
    RunItem(layer, item, queries, out, space);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    space.seconds[static_cast<std::size_t>(blocks_[Size(item.block)].task->use)] += took.count();
  }
}

std::array<double, kAttentionUses> BatchAttention::seconds() const {
  std::array<double, kAttentionUses> sums{};
  for (const ThreadSpace& space : spaces_) {
    for (std::size_t use = 0; use < kAttentionUses; ++use) {
      sums[use] += space.seconds[use] / static_cast<double>(spaces_.size());
    }
  }
  return sums;
}

void BatchAttention::Record(LayerId layer, const float* queries) const {
  const std::size_t row = Size(group_ * geometry_.kv_heads * geometry_.head_dim);
  for (const AttentionTask& task : tasks_) {
    if (task.taps == nullptr || !task.taps->queries) {
      continue;
    }
    QueryTap& tap = *task.taps->queries;
    for (int i = 0; i < task.rows; ++i) {
      if (tap.Wants(task.first_position + i)) {
        const std::span<float> to = tap.at(layer, task.first_position + i);
        std::copy_n(queries + Size(task.first_row + i) * row, row, to.begin());
      }
    }
  }
}

bool BatchAttention::WantsUnrotated() const {
  return std::ranges::any_of(
      tasks_, [](const AttentionTask& task) { return StatisticsOf(task) != nullptr; });
}

void BatchAttention::RecordUnrotated(LayerId layer, const float* queries, int thread, int threads) {
  const std::size_t row = Size(group_ * geometry_.kv_heads * geometry_.head_dim);
  for (const AttentionTask& task : tasks_) {
    if (QueryStatistics* statistics = StatisticsOf(task)) {
      statistics->Add(layer, task.first_position, task.rows, queries + Size(task.first_row) * row,
                      thread, threads);
    }
  }
}

bool BatchAttention::WantsAttention() const {
  return std::ranges::any_of(
      tasks_, [](const AttentionTask& task) { return AttentionOf(task) != nullptr; });
}

void BatchAttention::RecordAttention(LayerId layer, const float* queries, int thread, int threads) {
  const std::size_t row = Size(group_ * geometry_.kv_heads * geometry_.head_dim);
  for (const AttentionTask& task : tasks_) {
    if (KeyAttention* attention = AttentionOf(task)) {
      const SegmentView keys = task.cache->tail_view(layer);
      attention->Add(layer, keys, keys.end - task.rows, task.rows,
                     queries + Size(task.first_row) * row, thread, threads);
    }
  }
}

bool BatchAttention::WantsHidden() const {
  return std::ranges::any_of(tasks_, [](const AttentionTask& task) {
    return task.taps != nullptr && task.taps->hidden.has_value();
  });
}

void BatchAttention::RecordHidden(LayerId layer, const float* states, int thread, int /*threads*/) {
  for (const AttentionTask& task : tasks_) {
    if (thread == 0 && task.taps != nullptr && task.taps->hidden) {
      HiddenStates& hidden = *task.taps->hidden;
      hidden.Set(layer, task.first_position, task.rows,
                 states + Size(task.first_row) * hidden.width());
    }
  }
}

const ScorePredictor* BatchAttention::predictor() const {
  for (const AttentionTask& task : tasks_) {
    if (task.taps != nullptr && task.taps->predicted) {
      return &task.taps->predicted->predictor();
    }
  }
  return nullptr;
}

void BatchAttention::RecordPredicted(LayerId layer, const float* scores, int thread,
                                     int /*threads*/) {
  for (const AttentionTask& task : tasks_) {
    if (thread == 0 && task.taps != nullptr && task.taps->predicted) {
      task.taps->predicted->Set(layer, task.first_position, task.rows,
                                scores + Size(task.first_row) * Size(geometry_.kv_heads));
    }
  }
}

Partial BatchAttention::PartialAt(std::span<float> floats, int queries) const {
  const std::size_t n = Size(queries);
  return {.max = floats.subspan(0, n),
          .sum = floats.subspan(n, n),
          .out = floats.subspan(2 * n, n * Size(geometry_.head_dim))};
}

SegmentView BatchAttention::SegmentOf(const Chunk& chunk, LayerId layer,
                                      const AttentionTask& task) const {
  return chunk.part == kTail ? task.cache->tail_view(layer)
                             : task.cache->packed_view(layer, chunk.part);
}

void BatchAttention::Add(const Partial& part, bool part_rotated, const Partial& total,
                         bool& rotated) const {
  if (rotated != part_rotated) {
    ForEachRow(total.out, Size(geometry_.head_dim), part_rotated ? Rotate : RotateBack);
    rotated = part_rotated;
  }
  kernel_.merge(part, total);
}

void BatchAttention::RunItem(LayerId layer, const Item& item, const float* queries, float* out,
                             ThreadSpace& space) {
  Block& block = blocks_[Size(item.block)];
  const AttentionTask& task = *block.task;
  const int count = block.rows * group_;
  const std::size_t dim = Size(geometry_.head_dim);
  const std::span<float> own = std::span(space.queries).first(Size(count) * dim);
  const std::span<float> turned = std::span(space.rotated_queries).first(own.size());
  const float scale = 1.0F / std::sqrt(static_cast<float>(geometry_.head_dim));
  for (int q = 0; q < count; ++q) {
    const int row = task.first_row + block.first_row + q / group_;
    const int head = block.kv_head * group_ + q % group_;
    const float* from =
        queries + (Size(row) * Size(group_ * geometry_.kv_heads) + Size(head)) * dim;
    std::transform(from, from + dim, own.begin() + static_cast<std::ptrdiff_t>(Size(q) * dim),
                   [scale](float x) { return x * scale; });
  }

  const bool split = item.last_chunk - item.first_chunk < block.chunks;
  const std::size_t part_floats = PartialFloats(count);
  const Partial total = PartialAt(space.total, count);
  bool total_rotated = false;
  bool queries_turned = false;
  std::fill(total.max.begin(), total.max.end(), -std::numeric_limits<float>::infinity());
  std::fill(total.sum.begin(), total.sum.end(), 0.0F);
  std::fill(total.out.begin(), total.out.end(), 0.0F);
  for (int c = item.first_chunk; c < item.last_chunk; ++c) {
    const Chunk& chunk = chunks_[Size(item.chunk_list + c)];
    const SegmentView segment = SegmentOf(chunk, layer, task);
    for (int q = 0; q < count; ++q) {
      space.visible[Size(q)] = chunk.part == kTail
                                   ? segment.end - task.rows + block.first_row + q / group_ + 1
                                   : segment.end;
    }
    if (segment.layout->rotated_keys() && !std::exchange(queries_turned, true)) {
      std::ranges::copy(own, turned.begin());
      ForEachRow(turned, dim, Rotate);
    }
    const Partial part =
        split ? PartialAt(std::span(parts_).subspan(block.parts + part_floats * Size(c)), count)
              : PartialAt(space.part, count);
    const AttentionKernel& kernel = task.use == AttentionUse::kDraft ? draft_kernel_ : kernel_;
    kernel.attend_chunk({.segment = segment,
                         .begin = chunk.begin,
                         .end = chunk.end,
                         .kv_head = block.kv_head,
                         .queries = segment.layout->rotated_keys() ? turned : own,
                         .visible = std::span(space.visible).subspan(0, Size(count))},
                        space.workspace, part);
    if (!split) {
      Add(part, segment.layout->rotated_values(), total, total_rotated);
    }
  }
  if (split) {
    // The thread that finishes a block's last chunk merges all of them, in ascending order.
    if (block.left.fetch_sub(1, std::memory_order_acq_rel) > 1) {
      return;
    }
    for (int c = 0; c < block.chunks; ++c) {
      const SegmentView segment = SegmentOf(chunks_[Size(item.chunk_list + c)], layer, task);
      Add(PartialAt(std::span(parts_).subspan(block.parts + part_floats * Size(c)), count),
          segment.layout->rotated_values(), total, total_rotated);
    }
  }
  if (total_rotated) {
    ForEachRow(total.out, dim, RotateBack);
  }
  kernel_.finish(total);
  WriteOut(block, total, out);
}

void BatchAttention::WriteOut(const Block& block, const Partial& total, float* out) const {
  const std::size_t dim = Size(geometry_.head_dim);
  for (int q = 0; q < block.rows * group_; ++q) {
    const int row = block.task->first_row + block.first_row + q / group_;
    const int head = block.kv_head * group_ + q % group_;
    std::copy_n(total.out.begin() + static_cast<std::ptrdiff_t>(Size(q) * dim), dim,
                out + (Size(row) * Size(group_ * geometry_.kv_heads) + Size(head)) * dim);
  }
}

}  // namespace vericache
