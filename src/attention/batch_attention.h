// Attention of one layer for all rows of an iteration, each row over its own request's cache.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/kernel.h"
#include "attention/taps.h"
#include "kvcache/kv_cache.h"

namespace vericache {

// What the rows of a task are computed for: where their time counts, and which kernel they take.
enum class AttentionUse : std::uint8_t { kPrefill, kFull, kDraft };
inline constexpr std::size_t kAttentionUses = 3;

// Consecutive rows of one request. Their slots were added to the tail of `cache` (KvCache::Extend)
// before the iteration: row i writes and sees up to tail slot tail_slots - rows + i.
struct AttentionTask {
  KvCache* cache = nullptr;
  int first_row = 0;  // in the iteration's tensors
  int rows = 0;
  int first_position = 0;
  Taps* taps = nullptr;  // where what scorers ask for is recorded of these rows, if anywhere
  AttentionUse use = AttentionUse::kPrefill;
};

// Where a cache holds keys rotated, queries are rotated as well; where it holds values so, their
// weighted sum is rotated back, once for all chunks that are adjacent and held so.
//
// Runs inside ggml's thread pool: every thread calls Append, then after a barrier Attend, for each
// layer in turn. Work items (request, KV head, block of rows, chunk of the cache) are drawn
// dynamically; a row's result does not depend on how they fall.
class BatchAttention {
 public:
  // `heads` is a multiple of geometry.kv_heads; `threads` the most that will call Append and
  // Attend. Drafts take `draft_kernel`, all other rows `kernel`: a draft's bits need not be those
  // of a verify.
  BatchAttention(const AttentionKernel& kernel, const AttentionKernel& draft_kernel,
                 const CacheGeometry& geometry, int heads, int threads);

  // The tasks of the coming iteration, which cover its rows from the first on, without gaps; rows
  // after them get zeros.
  void Begin(std::span<const AttentionTask> tasks, int total_rows);

  // Writes the rows' keys and values, [row][kv_head][head_dim] each, into their caches, and the
  // queries that a tap wants, [row][head][head_dim], into the taps.
  void Append(LayerId layer, const float* queries, const float* keys, const float* values,
              int thread, int threads);

  // Whether a task of the iteration wants the queries before RoPE; these, [row][head][head_dim].
  bool WantsUnrotated() const;
  void RecordUnrotated(LayerId layer, const float* queries, int thread, int threads);

  // Likewise what the rows attend to; these after RoPE, once all rows' keys are appended.
  bool WantsAttention() const;
  void RecordAttention(LayerId layer, const float* queries, int thread, int threads);

  // Whether a task wants the hidden states that the layer reads, [row][embedding]; and the network
  // whose scores of them, [row][kv_head], tasks want, or nullptr.
  bool WantsHidden() const;
  void RecordHidden(LayerId layer, const float* states, int thread, int threads);
  const ScorePredictor* predictor() const;
  void RecordPredicted(LayerId layer, const float* scores, int thread, int threads);

  // out = softmax(q k^T / sqrt(head_dim)) v; queries and out are [row][head][head_dim].
  void Attend(LayerId layer, const float* queries, float* out, int thread, int threads);

  // How long Attend took since it was made, by use: the mean of all threads, without their waiting
  // for each other.
  std::array<double, kAttentionUses> seconds() const;

 private:
  static constexpr int kTail = -1;

  // Slots [begin, end) of a segment: the packed parts, then the tail.
  struct Chunk {
    int part;  // kTail: the tail
    int begin;
    int end;
  };
  // A block of rows of one KV head: the unit of a merge.
  struct Block {
    const AttentionTask* task;
    int kv_head;
    int first_row;  // within the task
    int rows;
    int chunks;             // how many of the task's chunks it sees
    std::size_t parts;      // offset of its partial results, if its chunks are split
    std::atomic<int> left;  // chunks not yet done

    Block(const AttentionTask* task_in, int head_in, int first_in, int rows_in)
        : task(task_in),
          kv_head(head_in),
          first_row(first_in),
          rows(rows_in),
          chunks(0),
          parts(0),
          left(0) {}
    Block(Block&& other) noexcept
        : task(other.task),
          kv_head(other.kv_head),
          first_row(other.first_row),
          rows(other.rows),
          chunks(other.chunks),
          parts(other.parts),
          left(other.left.load()) {}
  };
  struct Item {
    int block;
    int first_chunk;
    int last_chunk;
    int chunk_list;  // offset into chunks_
  };
  struct ThreadSpace {
    std::vector<float> workspace;
    std::vector<float> queries;
    std::vector<float> rotated_queries;
    std::vector<int> visible;
    std::vector<float> part;
    std::vector<float> total;
    std::array<double, kAttentionUses> seconds{};
  };

  // On one of ggml's threads, while others wait: running out of memory here ends the program.
  void Plan(LayerId layer, int threads) noexcept;
  void Record(LayerId layer, const float* queries) const;
  void RunItem(LayerId layer, const Item& item, const float* queries, float* out,
               ThreadSpace& space);
  SegmentView SegmentOf(const Chunk& chunk, LayerId layer, const AttentionTask& task) const;
  // Adds a part to a total whose sums are of rotated values if `rotated`, and makes it so that the
  // total's are as the part's.
  void Add(const Partial& part, bool part_rotated, const Partial& total, bool& rotated) const;
  void WriteOut(const Block& block, const Partial& total, float* out) const;
  Partial PartialAt(std::span<float> floats, int queries) const;
  std::size_t PartialFloats(int queries) const {
    return static_cast<std::size_t>(queries) * static_cast<std::size_t>(geometry_.head_dim + 2);
  }

  const AttentionKernel& kernel_;
  const AttentionKernel& draft_kernel_;
  CacheGeometry geometry_;
  int group_;  // query heads per KV head
  std::vector<ThreadSpace> spaces_;

  std::vector<AttentionTask> tasks_;
  int total_rows_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<Block> blocks_;
  std::vector<Item> items_;
  std::vector<float> parts_;
  std::atomic<int> next_item_{0};
};

}  // namespace vericache
