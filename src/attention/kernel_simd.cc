// The vector kernel, compiled once per instruction set by Highway's foreach_target.
//
// Scores: one vector holds one channel of several keys, so a score is a chain of fused
// multiply-adds over ascending channels. Output: one vector holds several channels of one value, a
// chain over ascending slots. How many queries share a load changes neither chain, hence results do
// not depend on the number of rows.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/kernel_simd.cc"
// SVE's vectors have no fixed size, which the arrays of sums need; NEON serves those machines.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "attention/kernel_simd.h"

#include <algorithm>

// foreach_target.h must come before highway.h.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "attention/chunk-inl.h"
#include "attention/readers-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace vericache {
namespace HWY_NAMESPACE {

// Queries that share one load of keys or values: what fits into sixteen registers.
inline constexpr int kQueryTile = 6;

// Vectors of keys, and of value channels, that a tile of `queries` holds at once.
constexpr int KeyVectors(int queries) {
  const int slots = (kLanes == 16 || queries <= 3) ? 32 : 16;
  return std::max(1, slots / kLanes);
}
constexpr int ValueVectors(int queries) { return queries <= 3 ? 4 : 2; }

struct Workspace {
  Workspace(std::span<float> floats, int head_dim)
      : scores(floats.data()),
        queries(scores + kMaxQueryBlock * kChunkSlots),
        tile(queries + kMaxQueryBlock * head_dim),
        scratch(tile + kGroupSlots * head_dim) {}

  float* scores;   // [query][kChunkSlots]
  float* queries;  // [channel][query]
  float* tile;     // a half page in float32
  float* scratch;  // for a reader
};

// scores[q][slot] for a tile of queries and the kGroupSlots slots of a half page.
template <int kQueries, class Keys>
HWY_INLINE void ScoreTile(const Keys& keys, int head_dim, const float* queries, int query_stride,
                          float* scores) {
  constexpr int kVectors = KeyVectors(kQueries);
  for (int slot = 0; slot < kGroupSlots; slot += kVectors * kLanes) {
    VF sums[kQueries][kVectors];
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) {
        sums[q][v] = hn::Zero(DF());
      }
    }
    for (int c = 0; c < head_dim; ++c) {
      VF key[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        key[v] = keys.Load(c, slot + v * kLanes);
      }
      for (int q = 0; q < kQueries; ++q) {
        const VF query = hn::Set(DF(), queries[c * query_stride + q]);
        for (int v = 0; v < kVectors; ++v) {
          sums[q][v] = hn::MulAdd(query, key[v], sums[q][v]);
        }
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) {
        hn::StoreU(sums[q][v], DF(), scores + q * kChunkSlots + slot + v * kLanes);
      }
    }
  }
}

// out[q][channel] += weights[q][slot] * value[slot][channel] over slots [begin, end) of a half
// page, for kVectors vectors of channels from `channel`.
template <int kQueries, int kVectors, class Values>
HWY_INLINE void AccumulateTile(const Values& values, int head_dim, int begin, int end, int channel,
                               const float* weights, float* out) {
  VF sums[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      sums[q][v] = hn::LoadU(DF(), out + q * head_dim + channel + v * kLanes);
    }
  }
  for (int slot = begin; slot < end; ++slot) {
    VF value[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      value[v] = values.Load(slot, channel + v * kLanes);
    }
    for (int q = 0; q < kQueries; ++q) {
      const VF weight = hn::Set(DF(), weights[q * kChunkSlots + slot]);
      for (int v = 0; v < kVectors; ++v) {
        sums[q][v] = hn::MulAdd(weight, value[v], sums[q][v]);
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[q][v], DF(), out + q * head_dim + channel + v * kLanes);
    }
  }
}

template <int kQueries, class Values>
HWY_INLINE void AccumulateRows(const Values& values, int head_dim, int begin, int end,
                               const float* weights, float* out) {
  constexpr int kVectors = ValueVectors(kQueries);
  int channel = 0;
  for (; channel + kVectors * kLanes <= head_dim; channel += kVectors * kLanes) {
    AccumulateTile<kQueries, kVectors>(values, head_dim, begin, end, channel, weights, out);
  }
  for (; channel < head_dim; channel += kLanes) {
    AccumulateTile<kQueries, 1>(values, head_dim, begin, end, channel, weights, out);
  }
}

// Calls f.operator()<n>(first) over [0, queries) in tiles of at most kQueryTile.
template <class F>
HWY_INLINE void ForEachTile(int queries, const F& f) {
  int first = 0;
  for (; first + kQueryTile <= queries; first += kQueryTile) {
    f.template operator()<kQueryTile>(first);
  }
  switch (queries - first) {
    case 1:
      return f.template operator()<1>(first);
    case 2:
      return f.template operator()<2>(first);
    case 3:
      return f.template operator()<3>(first);
    case 4:
      return f.template operator()<4>(first);
    case 5:
      return f.template operator()<5>(first);
    default:
      return;
  }
}

// A half page of keys or values in float32.
struct Tile {
  HWY_INLINE VF Load(int row, int column) const {
    return hn::LoadU(DF(), numbers + row * columns + column);
  }

  const float* numbers;  // keys: [channel][slot], values: [slot][channel]
  int columns;
};

template <class Keys>
HWY_INLINE void ScoreTiles(const Keys& keys, const Workspace& work, int head_dim, int queries,
                           float* scores) {
  ForEachTile(queries, [&]<int kQueries>(int first) HWY_ATTR {
    ScoreTile<kQueries>(keys, head_dim, work.queries + first, queries,
                        scores + first * kChunkSlots);
  });
}

HWY_NOINLINE void ScoreTilesOf(const Tile& keys, const Workspace& work, int head_dim, int queries,
                               float* scores) {
  ScoreTiles(keys, work, head_dim, queries, scores);
}

template <class Keys>
HWY_NOINLINE void ScoreHalfPage(const Keys& keys, const Workspace& work, int head_dim, int queries,
                                float* scores) {
  if (queries <= kQueryTile) {
    ScoreTiles(keys, work, head_dim, queries, scores);
    return;
  }
  // Several tiles of queries: dequantize once, into the first-level cache.
  for (int c = 0; c < head_dim; ++c) {
    for (int slot = 0; slot < kGroupSlots; slot += kLanes) {
      hn::StoreU(keys.Load(c, slot), DF(), work.tile + c * kGroupSlots + slot);
    }
  }
  ScoreTilesOf({work.tile, kGroupSlots}, work, head_dim, queries, scores);
}

template <class Values>
HWY_INLINE void AccumulateTiles(const Values& values, int head_dim, int queries, int begin, int end,
                                const float* weights, float* out) {
  ForEachTile(queries, [&]<int kQueries>(int first) HWY_ATTR {
    AccumulateRows<kQueries>(values, head_dim, begin, end, weights + first * kChunkSlots,
                             out + first * head_dim);
  });
}

HWY_NOINLINE void AccumulateTilesOf(const Tile& values, int head_dim, int queries, int begin,
                                    int end, const float* weights, float* out) {
  AccumulateTiles(values, head_dim, queries, begin, end, weights, out);
}

template <class Values>
HWY_NOINLINE void AccumulateHalfPage(const Values& values, const Workspace& work, int head_dim,
                                     int queries, int begin, int end, const float* weights,
                                     float* out) {
  if (queries <= kQueryTile) {
    AccumulateTiles(values, head_dim, queries, begin, end, weights, out);
    return;
  }
  for (int slot = begin; slot < end; ++slot) {
    for (int c = 0; c < head_dim; c += kLanes) {
      hn::StoreU(values.Load(slot, c), DF(), work.tile + slot * head_dim + c);
    }
  }
  AccumulateTilesOf({work.tile, head_dim}, head_dim, queries, begin, end, weights, out);
}

// The scores of all queries on slots [base, end), base a multiple of kGroupSlots.
template <class Keys>
void ScoreSlots(const ChunkInput& input, const Workspace& work, int base, int end) {
  const PageLayout& layout = *input.segment.layout;
  const int queries = static_cast<int>(input.visible.size());
  ForEachHalfPage(input, base, end, [&](int slot, const std::uint8_t* page) HWY_ATTR {
    const Keys keys = KeysAt<Keys>(input, slot, page, work.scratch);
    ScoreHalfPage(keys, work, layout.head_dim(), queries, work.scores + (slot - base));
  });
}

void Score(const ChunkInput& input, const Workspace& work, int base, int end) {
  WithKeys(input.segment.layout->format().keys,
           [&]<class Keys>() { ScoreSlots<Keys>(input, work, base, end); });
}

// Adds the weighted values of slots [begin, end) to the outputs of queries [first, first +
// queries).
template <class Values>
void AccumulateSlots(const ChunkInput& input, const Workspace& work, int begin, int end, int first,
                     int queries, float* out) {
  const PageLayout& layout = *input.segment.layout;
  const int head_dim = layout.head_dim();
  const int base = input.begin / kGroupSlots * kGroupSlots;
  ForEachHalfPage(input, begin, end, [&](int slot, const std::uint8_t* page) HWY_ATTR {
    const Values values = ValuesAt<Values>(input, slot, page, work.scratch);
    AccumulateHalfPage(values, work, head_dim, queries, std::max(0, begin - slot),
                       std::min(kGroupSlots, end - slot),
                       work.scores + first * kChunkSlots + (slot - base), out + first * head_dim);
  });
}

void Accumulate(const ChunkInput& input, const Workspace& work, int begin, int end, int first,
                int queries, float* out) {
  if (begin < end) {
    WithValues(input.segment.layout->format().values, [&]<class Values>() {
      AccumulateSlots<Values>(input, work, begin, end, first, queries, out);
    });
  }
}

void AttendChunk(const ChunkInput& input, std::span<float> floats, const Partial& result) {
  const PageLayout& layout = *input.segment.layout;
  const int head_dim = layout.head_dim();
  const int queries = static_cast<int>(input.visible.size());
  const Workspace work(floats, head_dim);
  for (int q = 0; q < queries; ++q) {
    for (int c = 0; c < head_dim; ++c) {
      work.queries[c * queries + q] = input.queries[static_cast<std::size_t>(q * head_dim + c)];
    }
  }
  const int base = input.begin / kGroupSlots * kGroupSlots;
  const int end = std::clamp(*std::max_element(input.visible.begin(), input.visible.end()),
                             input.begin, input.end);
  if (input.begin < end) {
    Score(input, work, base, end);
  }
  std::fill(result.out.begin(), result.out.end(), 0.0F);
  for (int q = 0; q < queries; ++q) {
    const auto i = static_cast<std::size_t>(q);
    const int high = std::clamp(input.visible[i], input.begin, end);
    Softmax(work.scores + q * kChunkSlots, input.begin - base, high - base, &result.max[i],
            &result.sum[i]);
  }
  // Slots that all queries see, together; those that only some see, one query at a time: a slot
  // that a query must not see may hold an infinity, which a weight of 0 would turn into a NaN.
  const int seen_by_all =
      std::clamp(*std::min_element(input.visible.begin(), input.visible.end()), input.begin, end);
  Accumulate(input, work, input.begin, seen_by_all, 0, queries, result.out.data());
  for (int q = 0; q < queries; ++q) {
    Accumulate(input, work, seen_by_all, std::min(end, input.visible[static_cast<std::size_t>(q)]),
               q, 1, result.out.data());
  }
}

AttentionKernel MakeKernel() {
  return {.name = HWY_TARGET == HWY_AVX3 ? "AVX512" : hwy::TargetName(HWY_TARGET),
          .attend_chunk = AttendChunk,
          .merge = Merge,
          .finish = Finish};
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace vericache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vericache {

HWY_EXPORT(MakeKernel);

std::size_t SimdWorkspaceFloats(int head_dim) {
  return static_cast<std::size_t>(kMaxQueryBlock * kChunkSlots) +
         static_cast<std::size_t>((kMaxQueryBlock + 2 * kGroupSlots) * head_dim);
}

std::vector<AttentionKernel> SimdKernels() {
  std::vector<AttentionKernel> kernels;
  const std::int64_t supported = hwy::SupportedTargets() & HWY_TARGETS & ~(HWY_EMU128 | HWY_SCALAR);
  // A higher bit is a narrower instruction set.
  for (int bit = 62; bit >= 0; --bit) {
    const std::int64_t target = std::int64_t{1} << bit;
    if ((supported & target) == 0) {
      continue;
    }
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    kernels.push_back(HWY_DYNAMIC_DISPATCH(MakeKernel)());
  }
  hwy::SetSupportedTargetsForTest(0);
  return kernels;
}

}  // namespace vericache
#endif  // HWY_ONCE
