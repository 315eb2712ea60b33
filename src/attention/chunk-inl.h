// What the kernels of a chunk have in common: the readers of its half pages, softmax over a row of
// scores, and how chunks are merged. Included once per instruction set (Highway's foreach_target).

#if defined(VERICACHE_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERICACHE_CHUNK_INL_H_
#undef VERICACHE_CHUNK_INL_H_
#else
#define VERICACHE_CHUNK_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/kernel.h"
#include "attention/kvquant_tiles-inl.h"
#include "attention/readers-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace vericache {
namespace HWY_NAMESPACE {

// Calls f.operator()<Reader>() with the reader of a format's keys, or values.
template <class F>
void WithKeys(NumberFormat format, const F& f) {
  switch (format) {
    case NumberFormat::kF32:
      return f.template operator()<PlainKeys<float>>();
    case NumberFormat::kF16:
      return f.template operator()<PlainKeys<hwy::float16_t>>();
    case NumberFormat::kBF16:
      return f.template operator()<PlainKeys<hwy::bfloat16_t>>();
    case NumberFormat::kQ8:
    case NumberFormat::kQ8R:
      return f.template operator()<BlockKeys<8, false>>();
    case NumberFormat::kQ4:
    case NumberFormat::kQ4R:
      return f.template operator()<BlockKeys<4, false>>();
    case NumberFormat::kKivi4:
    case NumberFormat::kKivi4R:
      return f.template operator()<GroupedKeys<4>>();
    case NumberFormat::kKivi2:
    case NumberFormat::kKivi2R:
      return f.template operator()<GroupedKeys<2>>();
    case NumberFormat::kTurbo4:
      return f.template operator()<BlockKeys<4, true>>();
    case NumberFormat::kTurbo3:
      return f.template operator()<BlockKeys<3, true>>();
    case NumberFormat::kTurbo2:
      return f.template operator()<BlockKeys<2, true>>();
    case NumberFormat::kRotate4:
      return f.template operator()<TokenKeys<4>>();
    case NumberFormat::kRotate2:
      return f.template operator()<TokenKeys<2>>();
    case NumberFormat::kKvQuant4:
      return f.template operator()<KvQuantKeys<4>>();
    case NumberFormat::kKvQuant3:
      return f.template operator()<KvQuantKeys<3>>();
    case NumberFormat::kKvQuant2:
      return f.template operator()<KvQuantKeys<2>>();
  }
}

template <class F>
void WithValues(NumberFormat format, const F& f) {
  switch (format) {
    case NumberFormat::kF32:
      return f.template operator()<PlainValues<float>>();
    case NumberFormat::kF16:
      return f.template operator()<PlainValues<hwy::float16_t>>();
    case NumberFormat::kBF16:
      return f.template operator()<PlainValues<hwy::bfloat16_t>>();
    case NumberFormat::kQ8:
    case NumberFormat::kQ8R:
      return f.template operator()<BlockValues<8, false>>();
    case NumberFormat::kQ4:
    case NumberFormat::kQ4R:
      return f.template operator()<BlockValues<4, false>>();
    case NumberFormat::kKivi4:
    case NumberFormat::kKivi4R:
    case NumberFormat::kRotate4:
      return f.template operator()<GroupedValues<4>>();
    case NumberFormat::kKivi2:
    case NumberFormat::kKivi2R:
    case NumberFormat::kRotate2:
      return f.template operator()<GroupedValues<2>>();
    case NumberFormat::kTurbo4:
      return f.template operator()<BlockValues<4, true>>();
    case NumberFormat::kTurbo3:
      return f.template operator()<BlockValues<3, true>>();
    case NumberFormat::kTurbo2:
      return f.template operator()<BlockValues<2, true>>();
    case NumberFormat::kKvQuant4:
      return f.template operator()<KvQuantValues<4>>();
    case NumberFormat::kKvQuant3:
      return f.template operator()<KvQuantValues<3>>();
    case NumberFormat::kKvQuant2:
      return f.template operator()<KvQuantValues<2>>();
  }
}

// The reader of the half page that begins at `slot` of the segment.
template <class Keys>
HWY_INLINE Keys KeysAt(const ChunkInput& input, int slot, const std::uint8_t* page,
                       float* scratch) {
  const PageLayout& layout = *input.segment.layout;
  const std::uint8_t* block = page + layout.KeyOffset(input.kv_head, slot % kPageSlots);
  if constexpr (requires { Keys(layout, block, input.kv_head, true, scratch); }) {
    return Keys(layout, block, input.kv_head, slot == 0, scratch);
  } else {
    return Keys(layout, block, scratch);
  }
}

template <class Values>
HWY_INLINE Values ValuesAt(const ChunkInput& input, int slot, const std::uint8_t* page,
                           float* scratch) {
  const PageLayout& layout = *input.segment.layout;
  const std::uint8_t* block = page + layout.ValueOffset(input.kv_head);
  const int first = slot % kPageSlots;
  if constexpr (requires { Values(layout, block, input.kv_head, first, true, scratch); }) {
    return Values(layout, block, input.kv_head, first, slot == 0, scratch);
  } else {
    return Values(layout, block, first, scratch);
  }
}

// Turns the scores [low, high) of a row into exp(score - max).
HWY_NOINLINE inline void Softmax(float* row, int low, int high, float* max, float* sum) {
  const DF d;
  const VF minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const int first = low / kLanes * kLanes;
  // Scores outside count as -infinity, which exp turns into 0; only the vectors at the ends have
  // any.
  const auto scores = [&](int i) HWY_ATTR {
    const VF score = hn::LoadU(d, row + i);
    if (i >= low && i + kLanes <= high) {
      return score;
    }
    const VF index = hn::Iota(d, static_cast<float>(i));
    const auto inside = hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(low))),
                                hn::Lt(index, hn::Set(d, static_cast<float>(high))));
    return hn::IfThenElse(inside, score, minus_infinity);
  };
  VF most = minus_infinity;
  for (int i = first; i < high; i += kLanes) {
    most = hn::Max(most, scores(i));
  }
  *max = hn::GetLane(hn::MaxOfLanes(d, most));
  VF total = hn::Zero(d);
  for (int i = first; i < high; i += kLanes) {
    const VF exponent = hn::Sub(scores(i), hn::Set(d, *max));
    const auto counts = hn::Ge(exponent, hn::Set(d, kMinExponent));
    const VF weight = hn::IfThenElseZero(counts, hn::Exp(d, exponent));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, row + i);
  }
  *sum = hn::GetLane(hn::SumOfLanes(d, total));
}

// Calls f(half_page_begin, page) for each half page of [begin, end).
template <class F>
HWY_INLINE void ForEachHalfPage(const ChunkInput& input, int begin, int end, const F& f) {
  for (int slot = begin / kGroupSlots * kGroupSlots; slot < end; slot += kGroupSlots) {
    f(slot, reinterpret_cast<const std::uint8_t*>(
                input.segment.pages[static_cast<std::size_t>(slot / kPageSlots)]));
  }
}

inline void Merge(const Partial& part, const Partial& total) {
  const DF d;
  const std::size_t head_dim = part.out.size() / part.max.size();
  for (std::size_t q = 0; q < part.max.size(); ++q) {
    const float max = std::max(part.max[q], total.max[q]);
    if (max == -std::numeric_limits<float>::infinity()) {
      continue;
    }
    const float part_weight = std::exp(part.max[q] - max);
    const float total_weight = std::exp(total.max[q] - max);
    total.max[q] = max;
    total.sum[q] = std::fma(part.sum[q], part_weight, total.sum[q] * total_weight);
    for (std::size_t c = q * head_dim; c < (q + 1) * head_dim; c += kLanes) {
      const VF scaled = hn::Mul(hn::LoadU(d, total.out.data() + c), hn::Set(d, total_weight));
      const VF sum = hn::MulAdd(hn::LoadU(d, part.out.data() + c), hn::Set(d, part_weight), scaled);
      hn::StoreU(sum, d, total.out.data() + c);
    }
  }
}

inline void Finish(const Partial& total) {
  const DF d;
  const std::size_t head_dim = total.out.size() / total.max.size();
  for (std::size_t q = 0; q < total.max.size(); ++q) {
    const VF scale = hn::Set(d, 1.0F / total.sum[q]);
    for (std::size_t c = q * head_dim; c < (q + 1) * head_dim; c += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, total.out.data() + c), scale), d, total.out.data() + c);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace vericache
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
