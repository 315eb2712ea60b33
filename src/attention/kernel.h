// Attention of a block of queries over one chunk of a segment: the unit that every instruction set
// implements. Chunks are merged in ascending order, so neither the number of rows computed together
// nor the number of threads changes the order in which a row's terms are added.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kvcache/kv_cache.h"

namespace vericache {

// Slots of a chunk. Chunks begin at multiples of it, counted from the first slot of the segment's
// first page: an absolute place, so that a longer cache has the same chunks and some more.
inline constexpr int kChunkSlots = 512;

// Queries of one KV head that are computed together, at most.
inline constexpr int kMaxQueryBlock = 48;

// Exponents below this count as zero: exp(-60) is 1e-26 of the largest term, far below the 6e-8
// that float32 resolves, and cutting there keeps every product a normal number.
inline constexpr float kMinExponent = -60.0F;

struct ChunkInput {
  SegmentView segment;
  int begin = 0;  // slots [begin, end) of the segment, of one chunk
  int end = 0;
  int kv_head = 0;
  std::span<const float> queries;  // [query][head_dim], scaled by 1 / sqrt(head_dim)
  std::span<const int> visible;    // per query: it sees slots < visible (segment's numbers)
};

// Unnormalized attention of a block of queries: out = sum of exp(score - max) * value, per query.
// A query that sees nothing has max = -infinity, sum = 0 and out = 0.
struct Partial {
  std::span<float> max;  // [query]
  std::span<float> sum;  // [query]
  std::span<float> out;  // [query][head_dim]
};

// One implementation.
struct AttentionKernel {
  std::string name;  // "scalar", "AVX2", "AVX512", "AMX", …

  // Attention over one chunk. `workspace` has WorkspaceFloats(head_dim) floats.
  void (*attend_chunk)(const ChunkInput& input, std::span<float> workspace, const Partial& result);

  // Merges `part` into `total` (Milakov and Gimelshein 2018, arXiv 1805.02867, eq. 4).
  void (*merge)(const Partial& part, const Partial& total);

  // out[i] = total.out[i] / total.sum, per query.
  void (*finish)(const Partial& total);

  // A product of two numbers errs by at most this, relative to it, before it is added in float32.
  double product_error = 0.0;
};

// Floats that every attend_chunk needs beside its result.
std::size_t WorkspaceFloats(int head_dim);

// Every implementation that this machine can run, the slowest ("scalar") first.
const std::vector<AttentionKernel>& AvailableKernels();

// The last of AvailableKernels, or the one that the environment variable VERICACHE_ISA names
// (scalar, avx2, avx512, amx, …; case does not matter). Throws UserError where it names one that
// this machine cannot run, listing those that it can.
const AttentionKernel& SelectKernel();

// The one for drafts: few rows over numbers that are to be dequantized, which AMX would have to
// split as well. The last of AvailableKernels but for AMX, or what VERICACHE_ISA names.
const AttentionKernel& SelectDraftKernel();

}  // namespace vericache
