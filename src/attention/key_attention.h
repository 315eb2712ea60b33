#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kvcache/kv_cache.h"

namespace vericache {

// Slots [begin, end).
struct SlotRange {
  int begin = 0;
  int end = 0;
};

// What keys get of the attention of queries, per layer and KV head: softmax(q k / sqrt(head_dim)),
// over the queries of all query heads of a KV head summed, or the largest.
class KeyAttention {
 public:
  enum class Over { kSum, kLargest };

  // Of the first `slots` slots of a cache.
  KeyAttention(const CacheGeometry& geometry, int heads, int slots, Over over, int threads);

  // What queries see from now on, ascending: these ranges alone, and of them no slot after their
  // own; and which slots' attention counts. Until then all are.
  void Restrict(std::vector<SlotRange> seen, SlotRange counted) {
    seen_ = std::move(seen);
    counted_ = counted;
  }

  // Adds the queries of `rows` rows, after RoPE, [row][head][head_dim]; row i sees slots up to
  // first_slot + i of the keys, which are in a plain format. Each of `threads` threads calls it and
  // adds its share.
  void Add(LayerId layer, const SegmentView& keys, int first_slot, int rows, const float* queries,
           int thread, int threads);

  // Per slot.
  std::vector<float> weights(LayerId layer, int kv_head) const;

 private:
  std::span<float> at(int thread, LayerId layer, int kv_head);

  int heads_;
  CacheGeometry geometry_;
  int slots_;
  Over over_;
  std::vector<SlotRange> seen_;
  SlotRange counted_;
  std::vector<std::vector<float>> by_thread_;  // each [layer][kv_head][slot]
};

}  // namespace vericache
