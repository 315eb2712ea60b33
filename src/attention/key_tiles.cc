// Compiled once per instruction set by Highway's foreach_target.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/key_tiles.cc"
// As in kernel_simd.cc.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "attention/key_tiles.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"

// foreach_target.h must come before highway.h.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "attention/readers-inl.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace vericache {
namespace HWY_NAMESPACE {

template <typename T>
void LoadTile(const std::byte* block, std::span<float> tile) {
  const auto* keys = reinterpret_cast<const T*>(block);
  for (std::size_t i = 0; i < tile.size(); i += kLanes) {
    hn::StoreU(LoadPlain(keys + i), DF(), tile.data() + i);
  }
}

void LoadTileOf(NumberFormat format, const std::byte* block, std::span<float> tile) {
  switch (format) {
    case NumberFormat::kF32:
      return LoadTile<float>(block, tile);
    case NumberFormat::kF16:
      return LoadTile<hwy::float16_t>(block, tile);
    case NumberFormat::kBF16:
      return LoadTile<hwy::bfloat16_t>(block, tile);
    default:
      Check(false, "keys of a plain format");
  }
}

void Multiply(std::span<const float> rows, std::span<const float> tile, float* out,
              std::size_t stride) {
  // Rows that share a load of the tile: with two vectors each, enough chains of additions to hide
  // their latency, within sixteen registers.
  constexpr std::size_t kRows = 4;
  const DF d;
  const std::size_t dim = tile.size() / kGroupSlots;
  const std::size_t count = rows.size() / dim;
  for (std::size_t first = 0; first < count; first += kRows) {
    const float* row[kRows];
    for (std::size_t i = 0; i < kRows; ++i) {
      row[i] = rows.data() + std::min(first + i, count - 1) * dim;
    }
    for (int slot = 0; slot < kGroupSlots; slot += 2 * kLanes) {
      VF low[kRows];
      VF high[kRows];
      for (std::size_t i = 0; i < kRows; ++i) {
        low[i] = hn::Zero(d);
        high[i] = hn::Zero(d);
      }
      const float* keys = tile.data() + slot;
      for (std::size_t c = 0; c < dim; ++c, keys += kGroupSlots) {
        const VF key_low = hn::LoadU(d, keys);
        const VF key_high = hn::LoadU(d, keys + kLanes);
        for (std::size_t i = 0; i < kRows; ++i) {
          const VF x = hn::Set(d, row[i][c]);
          low[i] = hn::MulAdd(x, key_low, low[i]);
          high[i] = hn::MulAdd(x, key_high, high[i]);
        }
      }
      for (std::size_t i = 0; i < std::min(kRows, count - first); ++i) {
        hn::StoreU(low[i], d, out + (first + i) * stride + slot);
        hn::StoreU(high[i], d, out + (first + i) * stride + slot + kLanes);
      }
    }
  }
}

void SoftmaxOf(std::span<float> scores) {
  const DF d;
  const std::size_t whole = scores.size() / kLanes * kLanes;
  const std::size_t rest = scores.size() - whole;
  // The rest in a vector of its own, filled up with what weighs nothing.
  float last[kLanes];
  std::fill(last, last + kLanes, -std::numeric_limits<float>::infinity());
  std::copy_n(scores.data() + whole, rest, last);
  VF most = hn::LoadU(d, last);
  for (std::size_t i = 0; i < whole; i += kLanes) {
    most = hn::Max(most, hn::LoadU(d, scores.data() + i));
  }
  const VF largest = hn::Set(d, hn::GetLane(hn::MaxOfLanes(d, most)));
  VF total = hn::Exp(d, hn::Max(hn::Sub(hn::LoadU(d, last), largest), hn::Set(d, -100.0F)));
  hn::StoreU(total, d, last);
  for (std::size_t i = rest; i < kLanes; ++i) {
    last[i] = 0.0F;
  }
  total = hn::LoadU(d, last);
  for (std::size_t i = 0; i < whole; i += kLanes) {
    const VF weight = hn::Exp(d, hn::Sub(hn::LoadU(d, scores.data() + i), largest));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, scores.data() + i);
  }
  std::copy_n(last, rest, scores.data() + whole);
  const float scale = 1.0F / hn::GetLane(hn::SumOfLanes(d, total));
  for (std::size_t i = 0; i < whole; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, scores.data() + i), hn::Set(d, scale)), d, scores.data() + i);
  }
  for (std::size_t i = whole; i < scores.size(); ++i) {
    scores[i] *= scale;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace vericache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vericache {

HWY_EXPORT(LoadTileOf);
HWY_EXPORT(Multiply);
HWY_EXPORT(SoftmaxOf);

void LoadKeyTile(const SegmentView& segment, int kv_head, int slot, std::span<float> tile) {
  const PageLayout& layout = *segment.layout;
  const std::byte* page = segment.pages[static_cast<std::size_t>(slot / kPageSlots)];
  HWY_DYNAMIC_DISPATCH(LoadTileOf)
  (layout.format().keys, page + layout.KeyOffset(kv_head, slot % kPageSlots), tile);
}

void MultiplyTile(std::span<const float> rows, std::span<const float> tile, float* out,
                  std::size_t stride) {
  HWY_DYNAMIC_DISPATCH(Multiply)(rows, tile, out, stride);
}

void Softmax(std::span<float> scores) {
  if (!scores.empty()) {
    HWY_DYNAMIC_DISPATCH(SoftmaxOf)(scores);
  }
}

}  // namespace vericache
#endif  // HWY_ONCE
