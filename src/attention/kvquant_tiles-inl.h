// Half pages of KVQuant formats as float32, outliers put in and keys rotated to their positions:
// the tiles that SIMD kernels read. Included once per instruction set, after readers-inl.h.

#if defined(VERICACHE_KVQUANT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERICACHE_KVQUANT_TILES_INL_H_
#undef VERICACHE_KVQUANT_TILES_INL_H_
#else
#define VERICACHE_KVQUANT_TILES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "attention/readers-inl.h"
#include "hwy/highway.h"
#include "kvcache/kvquant.h"

HWY_BEFORE_NAMESPACE();
namespace vericache {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 127 times the levels of codes [i, i + kLanes) of a group.
template <int kBits>
HWY_INLINE VF LoadLevels(const KvQuantLevels& levels, const std::uint8_t* group, int i) {
  const hn::RebindToSigned<DF> di;
  return hn::ConvertTo(
      DF(), hn::Sub(LookUp(levels.data(), LoadCodes<kBits>(group, i)), hn::Set(di, 128)));
}

HWY_INLINE float LoadHalf(const std::uint8_t* at) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  return hn::GetLane(
      hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(at))));
}

HWY_INLINE void PutOutliers(const std::uint8_t* from, int places, float* tile) {
  for (int i = 0; i < places; ++i) {
    std::uint16_t index;
    std::memcpy(&index, from + 2 * i, sizeof(index));
    tile[index] = LoadHalf(from + 2 * (places + i));
  }
}

// Positions of the slots of a half page.
using Positions = std::array<std::int32_t, kGroupSlots>;

HWY_INLINE bool Contiguous(const Positions& positions) {
  for (std::size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] != positions[0] + static_cast<std::int32_t>(i)) {
      return false;
    }
  }
  return true;
}

// The parts of the cosines and sines of a pair, at kLanes positions: RopeTable's two tables.
struct AnglesOf {
  VF coarse_cos;
  VF coarse_sin;
  VF fine_cos;
  VF fine_sin;
};

template <bool kContiguous>
HWY_INLINE AnglesOf LoadAngles(const RopeTable& rope, const Positions& positions, int pair,
                               int slot) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const float* coarse_cos = rope.coarse().cosines.data();
  const float* coarse_sin = rope.coarse().sines.data();
  const float* fine_cos = rope.fine().cosines.data() + pair * RopeTable::kFine;
  const float* fine_sin = rope.fine().sines.data() + pair * RopeTable::kFine;
  if constexpr (kContiguous) {
    const int step = positions[0] / RopeTable::kStep * rope.pairs() + pair;
    const int rest = positions[0] % RopeTable::kStep + slot;
    return {hn::Set(d, coarse_cos[step]), hn::Set(d, coarse_sin[step]),
            hn::LoadU(d, fine_cos + rest), hn::LoadU(d, fine_sin + rest)};
  } else {
    static_assert(RopeTable::kStep == 64);
    const auto at = hn::LoadU(di, positions.data() + slot);
    const auto step =
        hn::Add(hn::Mul(hn::ShiftRight<6>(at), hn::Set(di, rope.pairs())), hn::Set(di, pair));
    const auto rest = hn::And(at, hn::Set(di, RopeTable::kStep - 1));
    return {hn::GatherIndex(d, coarse_cos, step), hn::GatherIndex(d, coarse_sin, step),
            hn::GatherIndex(d, fine_cos, rest), hn::GatherIndex(d, fine_sin, rest)};
  }
}

// Rotates the keys of a tile, [channel][slot], to their positions.
template <bool kContiguous>
HWY_NOINLINE void TurnTile(const RopeTable& rope, const Positions& positions, float* tile) {
  const DF d;
  for (int pair = 0; pair < rope.pairs(); ++pair) {
    const auto [first, second] = rope.channels(pair);
    for (int slot = 0; slot < kGroupSlots; slot += kLanes) {
      const AnglesOf a = LoadAngles<kContiguous>(rope, positions, pair, slot);
      const VF c = hn::NegMulAdd(a.coarse_sin, a.fine_sin, hn::Mul(a.coarse_cos, a.fine_cos));
      const VF s = hn::MulAdd(a.coarse_sin, a.fine_cos, hn::Mul(a.coarse_cos, a.fine_sin));
      float* const x_at = tile + first * kGroupSlots + slot;
      float* const y_at = tile + second * kGroupSlots + slot;
      const VF x = hn::LoadU(d, x_at);
      const VF y = hn::LoadU(d, y_at);
      hn::StoreU(hn::NegMulAdd(y, s, hn::Mul(x, c)), d, x_at);
      hn::StoreU(hn::MulAdd(x, s, hn::Mul(y, c)), d, y_at);
    }
  }
}

// A half page of keys, [channel][slot]; `first` if it is a cache's first.
template <int kBits>
HWY_NOINLINE void KvQuantKeyTile(const PageLayout& layout, const std::uint8_t* block, int head,
                                 bool first, float* tile) {
  const DF d;
  const KvQuant& kvquant = layout.kvquant();
  const KvQuantLevels& levels = kvquant.key_levels_of(layout.format().keys);
  const KvQuantKeyPlacesOf places = KvQuantKeyPlaces(layout.format(), layout.head_dim());
  const int dim = layout.head_dim();
  const bool known = !kvquant.key_centers.empty();
  for (int c = 0; c < dim; ++c) {
    const auto channel = static_cast<std::size_t>(head * dim + c);
    const VF center = hn::Set(d, known ? kvquant.key_centers[channel] : 0.0F);
    const VF unit =
        hn::Set(d, (known ? kvquant.key_halves[channel] : kNormalCut) * (1.0F / 127.0F));
    for (int slot = 0; slot < kGroupSlots; slot += kLanes) {
      const VF level = LoadLevels<kBits>(levels, block + c * 4 * kBits, slot);
      hn::StoreU(hn::MulAdd(level, unit, center), d, tile + c * kGroupSlots + slot);
    }
  }
  PutOutliers(block + places.outliers, OutlierPlaces(layout.format().outliers, dim), tile);
  if (kvquant.rope) {
    Positions positions;
    for (std::size_t slot = 0; slot < kGroupSlots; ++slot) {
      std::uint16_t low;
      std::memcpy(&low, block + places.low_positions + 2 * slot, sizeof(low));
      positions[slot] = low + (block[places.high_positions + slot] << 16);
    }
    if (Contiguous(positions)) {
      TurnTile<true>(*kvquant.rope, positions, tile);
    } else {
      TurnTile<false>(*kvquant.rope, positions, tile);
    }
  }
  if (first && !kvquant.first_keys.empty()) {
    for (int c = 0; c < dim; ++c) {
      tile[c * kGroupSlots] = kvquant.first_keys[static_cast<std::size_t>(head * dim + c)];
    }
  }
}

// A half page of values, [slot][channel], from `first_slot` of a page on; `first` if it is a
// cache's first.
template <int kBits>
HWY_NOINLINE void KvQuantValueTile(const PageLayout& layout, const std::uint8_t* block, int head,
                                   int first_slot, bool first, float* tile) {
  const DF d;
  const KvQuant& kvquant = layout.kvquant();
  const KvQuantLevels& levels = kvquant.value_levels_of(layout.format().values);
  const KvQuantValuePlacesOf places = KvQuantValuePlaces(layout.format(), layout.head_dim());
  const int dim = layout.head_dim();
  const std::uint8_t* codes = block + first_slot * dim * kBits / 8;
  std::array<float, 2 * kGroupSlots> ranges;
  LoadScales(block + places.ranges + 4 * first_slot, 2 * kGroupSlots, ranges.data());
  for (int slot = 0; slot < kGroupSlots; ++slot) {
    const float* range = ranges.data() + 2 * slot;
    const VF center = hn::Set(d, range[0]);
    const VF unit = hn::Set(d, range[1] * (1.0F / 127.0F));
    for (int c = 0; c < dim; c += kLanes) {
      const std::uint8_t* group = codes + (slot * dim + c / kGroupSlots * kGroupSlots) * kBits / 8;
      const VF level = LoadLevels<kBits>(levels, group, c % kGroupSlots);
      hn::StoreU(hn::MulAdd(level, unit, center), d, tile + slot * dim + c);
    }
  }
  PutOutliers(block + places.outliers[first_slot < kGroupSlots ? 0 : 1],
              OutlierPlaces(layout.format().outliers, dim), tile);
  if (first && !kvquant.first_values.empty()) {
    std::copy_n(kvquant.first_values.data() + head * dim, dim, tile);
  }
}

// Readers of such tiles, which they make in `scratch`. `first`: the half page begins its segment.
template <int kBits>
class KvQuantKeys {
 public:
  KvQuantKeys(const PageLayout& layout, const std::uint8_t* half_block, int head, bool first,
              float* scratch)
      : tile_(scratch) {
    KvQuantKeyTile<kBits>(layout, half_block, head, first, scratch);
  }
  HWY_INLINE VF Load(int channel, int slot) const {
    return hn::LoadU(DF(), tile_ + channel * kGroupSlots + slot);
  }

 private:
  const float* tile_;
};

template <int kBits>
class KvQuantValues {
 public:
  KvQuantValues(const PageLayout& layout, const std::uint8_t* block, int head, int first_slot,
                bool first, float* scratch)
      : tile_(scratch), head_dim_(layout.head_dim()) {
    KvQuantValueTile<kBits>(layout, block, head, first_slot, first, scratch);
  }
  HWY_INLINE VF Load(int slot, int channel) const {
    return hn::LoadU(DF(), tile_ + slot * head_dim_ + channel);
  }

 private:
  const float* tile_;
  int head_dim_;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace vericache
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
