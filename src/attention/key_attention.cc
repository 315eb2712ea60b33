#include "attention/key_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/key_tiles.h"
#include "base/check.h"
#include "base/size.h"

namespace vericache {
namespace {

constexpr int kRows = 8;  // that share a load of the keys

// A half page of what a block of rows sees: its slots [begin, end) count.
struct Piece {
  int slot;  // of the half page
  int begin;
  int end;
};

// What rows see of `ranges` up to slot `visible`, in half pages.
std::vector<Piece> PiecesOf(std::span<const SlotRange> ranges, int visible) {
  std::vector<Piece> pieces;
  for (const SlotRange& range : ranges) {
    const int end = std::min(range.end, visible);
    for (int slot = range.begin / kGroupSlots * kGroupSlots; slot < end; slot += kGroupSlots) {
      pieces.push_back({.slot = slot,
                        .begin = std::max(range.begin, slot),
                        .end = std::min(end, slot + kGroupSlots)});
    }
  }
  return pieces;
}

}  // namespace

KeyAttention::KeyAttention(const CacheGeometry& geometry, int heads, int slots, Over over,
                           int threads)
    : heads_(heads),
      geometry_(geometry),
      slots_(slots),
      over_(over),
      seen_({{.begin = 0, .end = slots}}),
      counted_({.begin = 0, .end = slots}),
      by_thread_(Size(threads),
                 std::vector<float>(Size(geometry.layers * geometry.kv_heads) * Size(slots))) {}

std::span<float> KeyAttention::at(int thread, LayerId layer, int kv_head) {
  const std::size_t row = Size(Raw(layer) * geometry_.kv_heads + kv_head);
  return std::span(by_thread_[Size(thread)]).subspan(row * Size(slots_), Size(slots_));
}

void KeyAttention::Add(LayerId layer, const SegmentView& keys, int first_slot, int rows,
                       const float* queries, int thread, int threads) {
  Check(keys.begin == 0 && Size(threads) <= by_thread_.size(),
        "a full cache, threads as announced");
  const std::size_t dim = Size(geometry_.head_dim);
  const int group = heads_ / geometry_.kv_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(geometry_.head_dim));
  const int last = rows * (thread + 1) / threads;
  std::vector<float> block(Size(kRows * group) * dim);
  std::vector<float> tile(dim * kGroupSlots);
  std::vector<float> weights;
  for (int row = rows * thread / threads; row < last; row += kRows) {
    const int count = std::min(kRows, last - row);
    const std::vector<Piece> pieces = PiecesOf(seen_, first_slot + row + count);
    const std::size_t stride = pieces.size() * kGroupSlots;
    weights.resize(Size(count * group) * stride);
    for (int head = 0; head < geometry_.kv_heads; ++head) {
      for (int q = 0; q < count * group; ++q) {
        const float* from =
            queries + (Size(row + q / group) * Size(heads_) + Size(head * group + q % group)) * dim;
        std::transform(from, from + dim, block.begin() + static_cast<std::ptrdiff_t>(Size(q) * dim),
                       [scale](float x) { return x * scale; });
      }
      const auto used = std::span(block).first(Size(count * group) * dim);
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        LoadKeyTile(keys, head, pieces[p].slot, tile);
        MultiplyTile(used, tile, weights.data() + p * kGroupSlots, stride);
      }
      const std::span<float> to = at(thread, layer, head);
      for (int q = 0; q < count * group; ++q) {
        const auto scores = std::span(weights).subspan(Size(q) * stride, stride);
        const int visible = first_slot + row + q / group + 1;
        // Half pages are whole: what lies in them and is not seen weighs nothing.
        for (std::size_t p = 0; p < pieces.size(); ++p) {
          const Piece& piece = pieces[p];
          const auto half = scores.subspan(p * kGroupSlots, kGroupSlots);
          std::fill_n(half.begin(), piece.begin - piece.slot,
                      -std::numeric_limits<float>::infinity());
          const int end = std::clamp(visible, piece.begin, piece.end) - piece.slot;
          std::fill(half.begin() + end, half.end(), -std::numeric_limits<float>::infinity());
        }
        Softmax(scores);
        for (std::size_t p = 0; p < pieces.size(); ++p) {
          const auto half = scores.subspan(p * kGroupSlots, kGroupSlots);
          const int end = std::min(pieces[p].end, counted_.end);
          for (int slot = std::max(pieces[p].begin, counted_.begin); slot < end; ++slot) {
            float& sum = to[Size(slot)];
            const float weight = half[Size(slot - pieces[p].slot)];
            sum = over_ == Over::kSum ? sum + weight : std::max(sum, weight);
          }
        }
      }
    }
  }
}

std::vector<float> KeyAttention::weights(LayerId layer, int kv_head) const {
  std::vector<float> result(Size(slots_));
  const std::size_t row = Size(Raw(layer) * geometry_.kv_heads + kv_head) * Size(slots_);
  for (const std::vector<float>& each : by_thread_) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] =
          over_ == Over::kSum ? result[i] + each[row + i] : std::max(result[i], each[row + i]);
    }
  }
  return result;
}

}  // namespace vericache
