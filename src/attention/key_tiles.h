// The arithmetic of token scorers, vectorized: rows against tiles of keys, and softmax.
#pragma once

#include <cstddef>
#include <span>

#include "kvcache/kv_cache.h"

namespace vericache {

// The keys of a half page as float32, [head_dim][kGroupSlots]: that of `slot`, a multiple of
// kGroupSlots, of a segment in a plain format.
void LoadKeyTile(const SegmentView& segment, int kv_head, int slot, std::span<float> tile);

// out[i * stride + s] = sum over c of rows[i][c] * tile[c][s]; the rows are as long as a tile has
// channels.
void MultiplyTile(std::span<const float> rows, std::span<const float> tile, float* out,
                  std::size_t stride);

// Turns scores into exp(score - largest) over their sum.
void Softmax(std::span<float> scores);

}  // namespace vericache
