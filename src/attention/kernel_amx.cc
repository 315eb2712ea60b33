// The kernel for AMX. Queries, softmax weights and what the readers give are split into pairs of
// bfloat16 numbers (see amx_tiles.h) and multiplied a half page at a time.
//
// A number of the result is a sum over ascending channels, or slots, of fixed steps: neither the
// number of queries nor that of slots changes its order, since what is missing is filled with
// zeros. Hence results do not depend on the number of rows.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/kernel_amx.cc"
// AVX3 alone is wanted, AVX-512 being part of every processor with AMX; what the compiler assumes
// anyhow cannot be left out, and stays empty.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "attention/kernel_amx.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "attention/amx_tiles.h"

// foreach_target.h must come before highway.h.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "attention/chunk-inl.h"
#include "attention/readers-inl.h"
// clang-format on

#ifndef VERICACHE_KERNEL_AMX_ONCE_
#define VERICACHE_KERNEL_AMX_ONCE_
namespace vericache {

// Slots whose values are multiplied before sums go back to memory.
inline constexpr int kValueSlots = 4 * kGroupSlots;

// From a row of scores to the next: not a power of two, which would put all rows into few sets of
// the cache.
inline constexpr std::size_t kScoreStride = kChunkSlots + kTileColumns;

inline constexpr std::size_t kLineFloats = 16;  // of a line of the cache, which is a tile's row

constexpr int WholeSteps(int numbers) { return (numbers + kTileStep - 1) / kTileStep; }

// Where the parts of a workspace begin, in floats.
struct AmxOffsets {
  explicit constexpr AmxOffsets(int head_dim)
      : padded_dim(static_cast<std::size_t>(WholeSteps(head_dim) * kTileStep)),
        out(kRows * kScoreStride),
        queries(out + kRows * padded_dim),
        weights(queries + kRows * padded_dim),
        keys(weights + kRows * kValueSlots),
        values(keys + padded_dim * kPageSlots),
        scratch(values + kValueSlots * padded_dim),
        spare(scratch + kGroupSlots * padded_dim),
        end(spare + kRows * padded_dim) {}

  static constexpr std::size_t kRows = kMostRowTiles * kTileRows;
  static_assert(kRows == kMaxQueryBlock);

  std::size_t padded_dim;  // channels, filled up with zeros
  // [query][kScoreStride] scores come first.
  std::size_t out;      // [query][channel]
  std::size_t queries;  // [query][channel], all high parts, then all low ones, as are those below
  std::size_t weights;  // [query][kValueSlots]
  std::size_t keys;     // of two half pages: [channel / 2][slot]
  std::size_t values;   // [slot / 2][channel]
  std::size_t scratch;  // for a reader
  std::size_t spare;    // as out
  std::size_t end;
};

}  // namespace vericache
#endif  // VERICACHE_KERNEL_AMX_ONCE_

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace vericache {
namespace HWY_NAMESPACE {

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

inline constexpr std::uint32_t kHighBits = 0xFFFF0000U;

// What is left of numbers once their high parts are taken off.
HWY_INLINE VF Rest(VF numbers) {
  const DU du;
  const VU high =
      hn::And(hn::Add(hn::BitCast(du, numbers), hn::Set(du, 0x8000U)), hn::Set(du, kHighBits));
  return hn::Sub(numbers, hn::BitCast(DF(), high));
}

// What the low parts of a reader's numbers are.
enum class LowParts : std::uint8_t { kNone, kShort, kAny };

// Stores the high parts of pairs, and the low ones unless there are none.
template <LowParts kLow>
HWY_INLINE void StorePairs(VF first, VF second, std::uint32_t* high, std::uint32_t* low) {
  const DU du;
  const VU half = hn::Set(du, 0x8000U);
  const VU mask = hn::Set(du, kHighBits);
  const VU a = hn::Add(hn::BitCast(du, first), half);
  const VU b = hn::And(hn::Add(hn::BitCast(du, second), half), mask);
  hn::StoreU(hn::Or(hn::ShiftRight<16>(a), b), du, high);
  if constexpr (kLow != LowParts::kNone) {
    VU rest_a = hn::BitCast(du, hn::Sub(first, hn::BitCast(DF(), hn::And(a, mask))));
    VU rest_b = hn::BitCast(du, hn::Sub(second, hn::BitCast(DF(), b)));
    if constexpr (kLow == LowParts::kAny) {
      rest_a = hn::Add(rest_a, half);
      rest_b = hn::Add(rest_b, half);
    }
    hn::StoreU(hn::OrAnd(hn::ShiftRight<16>(rest_a), rest_b, mask), du, low);
  }
}

// Stores the parts of 2 * kLanes adjacent numbers.
HWY_INLINE void StoreRow(VF first, VF second, std::uint16_t* high, std::uint16_t* low) {
  const hn::Repartition<std::uint16_t, DF> d16;
  const auto store = [&](VF a, VF b, std::uint16_t* to) HWY_ATTR {
    const DU du;
    const VU half = hn::Set(du, 0x8000U);
    const auto upper = [&](VF x)
                           HWY_ATTR { return hn::BitCast(d16, hn::Add(hn::BitCast(du, x), half)); };
    hn::StoreU(hn::ConcatOdd(d16, upper(b), upper(a)), d16, to);
  };
  store(first, second, high);
  store(Rest(first), Rest(second), low);
}

// bfloat16 numbers have no low parts; those of half precision ones fit without rounding.
template <template <typename> class Plain, class Reader>
constexpr LowParts LowPartsFor() {
  return std::is_same_v<Reader, Plain<hwy::bfloat16_t>>  ? LowParts::kNone
         : std::is_same_v<Reader, Plain<hwy::float16_t>> ? LowParts::kShort
                                                         : LowParts::kAny;
}
template <class Keys>
inline constexpr LowParts kLowKeys = LowPartsFor<PlainKeys, Keys>();
template <class Values>
inline constexpr LowParts kLowValues = LowPartsFor<PlainValues, Values>();

struct AmxWorkspace {
  AmxWorkspace(std::span<float> floats, int head_dim)
      : at(head_dim),
        scores(Aligned(floats.data())),
        out(scores + at.out),
        queries(reinterpret_cast<std::uint16_t*>(scores + at.queries)),
        weights(reinterpret_cast<std::uint16_t*>(scores + at.weights)),
        keys(reinterpret_cast<std::uint32_t*>(scores + at.keys)),
        values(reinterpret_cast<std::uint32_t*>(scores + at.values)),
        scratch(scores + at.scratch),
        spare(scores + at.spare) {}

  static float* Aligned(float* floats) {
    void* address = floats;
    std::size_t space = 2 * kLineFloats * sizeof(float);
    return static_cast<float*>(
        std::align(kLineFloats * sizeof(float), kLineFloats * sizeof(float), address, space));
  }

  AmxOffsets at;
  float* scores;
  float* out;
  std::uint16_t* queries;
  std::uint16_t* weights;
  std::uint32_t* keys;
  std::uint32_t* values;
  float* scratch;
  float* spare;
};

// Rows of a tile after the last query hold anything, here as elsewhere: what comes of them is left.
void SplitQueries(const ChunkInput& input, const AmxWorkspace& work, int head_dim) {
  const std::size_t dim = work.at.padded_dim;
  std::uint16_t* const low = work.queries + AmxOffsets::kRows * dim;
  for (std::size_t q = 0; q < input.visible.size(); ++q) {
    const float* from = input.queries.data() + q * static_cast<std::size_t>(head_dim);
    for (int c = 0; c < head_dim; c += kTileStep) {
      const VF first = hn::LoadU(DF(), from + c);
      const VF second = c + kLanes < head_dim ? hn::LoadU(DF(), from + c + kLanes) : hn::Zero(DF());
      const std::size_t to = q * dim + static_cast<std::size_t>(c);
      StoreRow(first, second, work.queries + to, low + to);
    }
  }
}

// The keys of a half page, to the columns from `column` on.
template <class Keys>
void SplitKeys(const Keys& keys, const AmxWorkspace& work, int head_dim, int column) {
  std::uint32_t* const low = work.keys + work.at.padded_dim / 2 * kPageSlots;
  for (int c = 0; c < head_dim; c += 2) {
    for (int s = 0; s < kGroupSlots; s += kLanes) {
      const int to = c / 2 * kPageSlots + column + s;
      StorePairs<kLowKeys<Keys>>(keys.Load(c, s), keys.Load(c + 1, s), work.keys + to, low + to);
    }
  }
}

// The scores of all queries on slots [base, end), base a multiple of kGroupSlots.
template <class Keys>
void AmxScores(const ChunkInput& input, const AmxWorkspace& work, int base, int end,
               TileProduct product) {
  const int head_dim = input.segment.layout->head_dim();
  std::uint32_t* const low = work.keys + work.at.padded_dim / 2 * kPageSlots;
  for (std::uint32_t* part : {work.keys, low}) {  // channels that are not there
    std::fill(part + head_dim / 2 * kPageSlots, part + work.at.padded_dim / 2 * kPageSlots, 0U);
  }
  product.steps = static_cast<int>(work.at.padded_dim) / kTileStep;
  product.a_high = work.queries;
  product.a_low = work.queries + AmxOffsets::kRows * work.at.padded_dim;
  product.a_stride = work.at.padded_dim * sizeof(std::uint16_t);
  product.b_high = work.keys;
  product.b_low = kLowKeys<Keys> == LowParts::kNone ? nullptr : low;
  product.b_stride = kPageSlots * sizeof(std::uint32_t);
  product.b_step_stride = kTileStep / 2 * product.b_stride;
  product.c_stride = kScoreStride * sizeof(float);
  for (int begin = base; begin < end; begin += kPageSlots) {
    const int last = std::min(end, begin + kPageSlots);
    ForEachHalfPage(input, begin, last, [&](int slot, const std::uint8_t* page) HWY_ATTR {
      SplitKeys(KeysAt<Keys>(input, slot, page, work.scratch), work, head_dim, slot - begin);
    });
    product.column_tiles = last - begin > kGroupSlots ? 4 : 2;
    product.c = work.scores + (begin - base);
    Multiply(product);
  }
}

// Softmax weights of slots [begin, begin + kValueSlots) of a query's row of scores, those outside
// of [low, high) zero.
void SplitWeights(const AmxWorkspace& work, std::size_t query, int begin, int low, int high) {
  const float* from = work.scores + query * kScoreStride;
  std::uint16_t* const to = work.weights + query * kValueSlots;
  const auto weights = [&](int i) HWY_ATTR {
    return i >= high || i + kLanes <= low ? hn::Zero(DF()) : hn::LoadU(DF(), from + i);
  };
  for (int i = 0; i < kValueSlots; i += 2 * kLanes) {
    StoreRow(weights(begin + i), weights(begin + i + kLanes), to + i,
             to + i + AmxOffsets::kRows * kValueSlots);
  }
}

// The values of a half page to the rows from `pair` on; those of slots outside of [begin, end) as
// zeros.
template <class Values>
void SplitHalfPage(const Values& values, const AmxWorkspace& work, int head_dim, int pair,
                   int begin, int end) {
  const std::size_t dim = work.at.padded_dim;
  std::uint32_t* const low = work.values + kValueSlots / 2 * dim;
  const bool whole = begin <= 0 && end >= kGroupSlots;
  const auto load = [&](int s, int c) HWY_ATTR {
    return whole || (s >= begin && s < end) ? values.Load(s, c) : hn::Zero(DF());
  };
  for (int s = 0; s < kGroupSlots; s += 2) {
    const std::size_t row = static_cast<std::size_t>(pair + s / 2) * dim;
    for (int c = 0; c < head_dim; c += kLanes) {
      const std::size_t to = row + static_cast<std::size_t>(c);
      StorePairs<kLowValues<Values>>(load(s, c), load(s + 1, c), work.values + to, low + to);
    }
  }
}

// The values of slots [begin, end) of the segment, begin a multiple of kGroupSlots, filled up to
// whole half pages with zeros; those before the chunk's begin are zero, too.
template <class Values>
void SplitValues(const ChunkInput& input, const AmxWorkspace& work, int begin, int end) {
  ForEachHalfPage(input, begin, end, [&](int slot, const std::uint8_t* page) HWY_ATTR {
    SplitHalfPage(ValuesAt<Values>(input, slot, page, work.scratch), work,
                  input.segment.layout->head_dim(), (slot - begin) / 2, input.begin - slot,
                  end - slot);
  });
}

// Whether all values of the half pages split last are finite.
bool FiniteValues(const AmxWorkspace& work, int half_pages, int head_dim) {
  const DU du;
  const hn::Repartition<std::uint16_t, DU> d16;
  const auto exponent = hn::Set(d16, std::uint16_t{0x7F80});
  for (std::size_t pair = 0; pair < static_cast<std::size_t>(half_pages * kGroupSlots / 2);
       ++pair) {
    for (int c = 0; c < head_dim; c += kLanes) {
      const auto words =
          hn::BitCast(d16, hn::LoadU(du, work.values + pair * work.at.padded_dim + c));
      if (!hn::AllFalse(d16, hn::Eq(hn::And(words, exponent), exponent))) {
        return false;
      }
    }
  }
  return true;
}

// out += weights * values, of the parts split last.
void MultiplyValues(const AmxWorkspace& work, int head_dim, bool has_low, TileProduct product,
                    float* out) {
  const std::size_t dim = work.at.padded_dim;
  product.adds = true;
  product.a_high = work.weights;
  product.a_low = work.weights + AmxOffsets::kRows * kValueSlots;
  product.a_stride = kValueSlots * sizeof(std::uint16_t);
  product.b_stride = dim * sizeof(std::uint32_t);
  product.b_step_stride = kTileStep / 2 * product.b_stride;
  product.c_stride = dim * sizeof(float);
  product.column_tiles = head_dim / kTileColumns;
  product.b_high = work.values;
  product.b_low = has_low ? work.values + kValueSlots / 2 * dim : nullptr;
  product.c = out;
  Multiply(product);
}

// Adds the weighted values of slots [base, end) to work.out.
template <class Values>
void AmxAccumulate(const ChunkInput& input, const AmxWorkspace& work, int base, int end,
                   TileProduct product) {
  const int head_dim = input.segment.layout->head_dim();
  const std::size_t dim = work.at.padded_dim;
  constexpr bool kHasLow = kLowValues<Values> != LowParts::kNone;
  const int seen_by_all = *std::min_element(input.visible.begin(), input.visible.end());
  for (int begin = base; begin < end; begin += kValueSlots) {
    const int last = std::min(end, begin + kValueSlots);
    for (std::size_t q = 0; q < input.visible.size(); ++q) {
      SplitWeights(work, q, begin - base, input.begin - base,
                   std::min(end, input.visible[q]) - base);
    }
    SplitValues<Values>(input, work, begin, last);
    product.steps = (last - begin + kGroupSlots - 1) / kGroupSlots;
    if (last <= seen_by_all || FiniteValues(work, product.steps, head_dim)) {
      MultiplyValues(work, head_dim, kHasLow, product, work.out);
      continue;
    }
    // A slot that a query must not see holds an infinity, which its weight of 0 would turn into a
    // NaN: one query at a time, with zeros in what it does not see.
    for (std::size_t q = 0; q < input.visible.size(); ++q) {
      SplitValues<Values>(input, work, begin, std::min(last, input.visible[q]));
      std::copy_n(work.out, AmxOffsets::kRows * dim, work.spare);
      MultiplyValues(work, head_dim, kHasLow, product, work.spare);
      std::copy_n(work.spare + q * dim, dim, work.out + q * dim);
    }
  }
}

void AmxAttendChunk(const ChunkInput& input, std::span<float> floats, const Partial& result) {
  const int head_dim = input.segment.layout->head_dim();
  const KvFormat format = input.segment.layout->format();
  const auto queries = static_cast<int>(input.visible.size());
  const AmxWorkspace work(floats, head_dim);
  const std::size_t dim = work.at.padded_dim;
  const int base = input.begin / kGroupSlots * kGroupSlots;
  const int end = std::clamp(*std::max_element(input.visible.begin(), input.visible.end()),
                             input.begin, input.end);
  const TileProduct product{.row_tiles = (queries + kTileRows - 1) / kTileRows};
  const AmxTiles tiles(std::min(queries, kTileRows), product.row_tiles);
  SplitQueries(input, work, head_dim);
  if (input.begin < end) {
    WithKeys(format.keys, [&]<class Keys>() { AmxScores<Keys>(input, work, base, end, product); });
  }
  for (std::size_t q = 0; q < input.visible.size(); ++q) {
    const int high = std::clamp(input.visible[q], input.begin, end);
    Softmax(work.scores + q * kScoreStride, input.begin - base, high - base, &result.max[q],
            &result.sum[q]);
  }
  std::fill_n(work.out, input.visible.size() * dim, 0.0F);
  if (input.begin < end) {
    WithValues(format.values,
               [&]<class Values>() { AmxAccumulate<Values>(input, work, base, end, product); });
  }
  for (std::size_t q = 0; q < input.visible.size(); ++q) {
    std::copy_n(work.out + q * dim, head_dim,
                result.out.data() + q * static_cast<std::size_t>(head_dim));
  }
}

AttentionKernel MakeAmxKernel() {
  return {.name = "AMX",
          .attend_chunk = AmxAttendChunk,
          .merge = Merge,
          .finish = Finish,
          .product_error = kAmxProductError};
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace vericache
HWY_AFTER_NAMESPACE();
#endif  // AVX3

#if HWY_ONCE
namespace vericache {

std::size_t AmxWorkspaceFloats(int head_dim) { return AmxOffsets(head_dim).end + kLineFloats; }

std::optional<AttentionKernel> AmxKernel() {
#if (HWY_TARGETS & HWY_AVX3) != 0
  if ((hwy::SupportedTargets() & HWY_AVX3) != 0 && HasAmx()) {
    return N_AVX3::MakeAmxKernel();
  }
#endif
  return std::nullopt;
}

}  // namespace vericache
#endif  // HWY_ONCE
