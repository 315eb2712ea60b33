// How SIMD kernels read each number format: vectors of dequantized float32, straight from a page.
// Included once per instruction set (Highway's foreach_target).
//
// A key reader works on one half page (kGroupSlots slots) of one head; a value reader on the same
// slots of the value block. `scratch` has kGroupSlots * head_dim floats.

#if defined(VERICACHE_READERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VERICACHE_READERS_INL_H_
#undef VERICACHE_READERS_INL_H_
#else
#define VERICACHE_READERS_INL_H_
#endif

#include <array>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kvcache/format.h"
#include "kvcache/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace vericache {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that one vector never spans more than the codes of one half group.
inline constexpr int kLanes = HWY_LANES(float) < 16 ? static_cast<int>(HWY_LANES(float)) : 16;
using DF = hn::FixedTag<float, kLanes>;
using VF = hn::Vec<DF>;

// Plain formats, by their storage type.
HWY_INLINE VF LoadPlain(const float* at) { return hn::LoadU(DF(), at); }
HWY_INLINE VF LoadPlain(const hwy::float16_t* at) {
  return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<hwy::float16_t, DF>(), at));
}
HWY_INLINE VF LoadPlain(const hwy::bfloat16_t* at) {
  return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, DF>(), at));
}

// Codes [i, i + kLanes) of a group; i a multiple of kLanes. See PutCode in kvcache/quantize.h.
template <int kBits>
HWY_INLINE hn::Vec<hn::RebindToSigned<DF>> LoadCodes(const std::uint8_t* group, int i) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::uint8_t, DF> d8;
  if constexpr (kBits == 8) {
    return hn::PromoteTo(di, hn::LoadU(d8, group + i));
  } else if constexpr (kBits == 4) {
    const auto codes = hn::PromoteTo(di, hn::LoadU(d8, group + i % 16));
    const auto shifted = i < 16 ? codes : hn::ShiftRight<4>(codes);
    return hn::And(shifted, hn::Set(di, 15));
  } else {
    const hn::RebindToUnsigned<DF> du;
    std::uint32_t word;
    std::memcpy(&word, group + i / 16 * 4, sizeof(word));
    const auto shift = hn::Iota(du, static_cast<std::uint32_t>(i % 16));
    auto codes = hn::And(hn::Shr(hn::Set(du, word), hn::Add(shift, shift)), hn::Set(du, 3U));
    if constexpr (kBits == 3) {
      std::memcpy(&word, group + 8, sizeof(word));
      const auto high = hn::Shr(hn::Set(du, word), hn::Iota(du, static_cast<std::uint32_t>(i)));
      codes = hn::Or(codes, hn::ShiftLeft<2>(hn::And(high, hn::Set(du, 1U))));
    }
    return hn::BitCast(di, codes);
  }
}

// What bytes codes are looked up as, in a table of 16.
template <class V>
HWY_INLINE V LookUp(const std::uint8_t* table, V codes) {
  const hn::DFromV<V> di;
  if constexpr (kLanes < 4) {
    return hn::Set(di, table[static_cast<std::size_t>(hn::GetLane(codes))]);
  } else {
    // The low byte of each code is looked up, and what the zeros above it find is dropped.
    const hn::Repartition<std::uint8_t, decltype(di)> d8;
    const auto found = hn::TableLookupBytes(hn::LoadDup128(d8, table), hn::BitCast(d8, codes));
    return hn::And(hn::BitCast(di, found), hn::Set(di, 255));
  }
}

// Codes of formats without a minimum as signed numbers, which a scale alone is to be applied to.
template <int kBits, bool kLevels>
HWY_INLINE VF LoadSigned(const std::uint8_t* group, int i) {
  const hn::RebindToSigned<DF> di;
  auto codes = LoadCodes<kBits>(group, i);
  if constexpr (kLevels) {
    static constexpr std::array<std::uint8_t, 16> kTable = RowLevels(kBits);
    codes = LookUp(kTable.data(), codes);
  }
  constexpr int kZero = kLevels ? 128 : 1 << (kBits - 1);
  return hn::ConvertTo(DF(), hn::Sub(codes, hn::Set(di, kZero)));
}

// `count` half-precision numbers to float32; count a multiple of 16.
HWY_INLINE void LoadScales(const std::uint8_t* from, int count, float* to) {
  const auto* numbers = reinterpret_cast<const hwy::float16_t*>(from);
  for (int i = 0; i < count; i += kLanes) {
    hn::StoreU(LoadPlain(numbers + i), DF(), to + i);
  }
}

template <typename T>
class PlainKeys {
 public:
  PlainKeys(const PageLayout& /*layout*/, const std::uint8_t* half_block, float* /*scratch*/)
      : keys_(reinterpret_cast<const T*>(half_block)) {}
  HWY_INLINE VF Load(int channel, int slot) const {
    return LoadPlain(keys_ + channel * kGroupSlots + slot);
  }

 private:
  const T* keys_;
};

template <typename T>
class PlainValues {
 public:
  PlainValues(const PageLayout& layout, const std::uint8_t* block, int first_slot,
              float* /*scratch*/)
      : values_(reinterpret_cast<const T*>(block) + first_slot * layout.head_dim()),
        head_dim_(layout.head_dim()) {}
  HWY_INLINE VF Load(int slot, int channel) const {
    return LoadPlain(values_ + slot * head_dim_ + channel);
  }

 private:
  const T* values_;
  int head_dim_;
};

template <int kBits>
class GroupedKeys {
 public:
  GroupedKeys(const PageLayout& layout, const std::uint8_t* half_block, float* scratch)
      : codes_(half_block), scales_(scratch) {
    LoadScales(half_block + CodeBytes(layout.format().keys, layout.head_dim() * kGroupSlots),
               2 * layout.head_dim(), scratch);
  }
  HWY_INLINE VF Load(int channel, int slot) const {
    return hn::MulAdd(hn::ConvertTo(DF(), LoadCodes<kBits>(codes_ + channel * 4 * kBits, slot)),
                      hn::Set(DF(), scales_[2 * channel]), hn::Set(DF(), scales_[2 * channel + 1]));
  }

 private:
  const std::uint8_t* codes_;
  const float* scales_;
};

template <int kBits>
class GroupedValues {
 public:
  GroupedValues(const PageLayout& layout, const std::uint8_t* block, int first_slot, float* scratch)
      : codes_(block + first_slot * layout.head_dim() * kBits / 8),
        head_dim_(layout.head_dim()),
        groups_(layout.head_dim() / kGroupSlots),
        scales_(scratch) {
    LoadScales(block + CodeBytes(layout.format().values, layout.head_dim() * kPageSlots) +
                   first_slot * groups_ * static_cast<int>(ScaleBytes(layout.format().values)),
               2 * kGroupSlots * groups_, scratch);
  }
  HWY_INLINE VF Load(int slot, int channel) const {
    const int group = channel / kGroupSlots;
    const float* scale = scales_ + 2 * (slot * groups_ + group);
    const std::uint8_t* codes = codes_ + (slot * head_dim_ + group * kGroupSlots) * kBits / 8;
    return hn::MulAdd(hn::ConvertTo(DF(), LoadCodes<kBits>(codes, channel % kGroupSlots)),
                      hn::Set(DF(), scale[0]), hn::Set(DF(), scale[1]));
  }

 private:
  const std::uint8_t* codes_;
  int head_dim_;
  int groups_;
  const float* scales_;
};

// Keys whose scales belong to channels of one token: with a scale alone, of each block of channels
// or, where codes are levels, of all of them.
template <int kBits, bool kLevels>
class BlockKeys {
 public:
  BlockKeys(const PageLayout& layout, const std::uint8_t* half_block, float* scratch)
      : codes_(half_block), scales_(scratch) {
    LoadScales(half_block + CodeBytes(layout.format().keys, layout.head_dim() * kGroupSlots),
               kLevels ? kGroupSlots : layout.head_dim(), scratch);
  }
  HWY_INLINE VF Load(int channel, int slot) const {
    const int block = kLevels ? 0 : channel / kGroupSlots * kGroupSlots;
    return hn::Mul(LoadSigned<kBits, kLevels>(codes_ + channel * 4 * kBits, slot),
                   hn::LoadU(DF(), scales_ + block + slot));
  }

 private:
  const std::uint8_t* codes_;
  const float* scales_;  // [block of channels][slot]
};

// And with a scale and a minimum of each block of channels.
template <int kBits>
class TokenKeys {
 public:
  TokenKeys(const PageLayout& layout, const std::uint8_t* half_block, float* scratch)
      : codes_(half_block), scales_(scratch), minimums_(scratch + layout.head_dim()) {
    LoadScales(half_block + CodeBytes(layout.format().keys, layout.head_dim() * kGroupSlots),
               2 * layout.head_dim(), scratch);
  }
  HWY_INLINE VF Load(int channel, int slot) const {
    const int at = channel / kGroupSlots * kGroupSlots + slot;
    return hn::MulAdd(hn::ConvertTo(DF(), LoadCodes<kBits>(codes_ + channel * 4 * kBits, slot)),
                      hn::LoadU(DF(), scales_ + at), hn::LoadU(DF(), minimums_ + at));
  }

 private:
  const std::uint8_t* codes_;
  const float* scales_;  // [block of channels][slot]
  const float* minimums_;
};

// Values with a scale alone, of each block of channels or of all of them.
template <int kBits, bool kLevels>
class BlockValues {
 public:
  BlockValues(const PageLayout& layout, const std::uint8_t* block, int first_slot, float* scratch)
      : codes_(block + first_slot * layout.head_dim() * kBits / 8),
        head_dim_(layout.head_dim()),
        blocks_(kLevels ? 1 : layout.head_dim() / kGroupSlots),
        scales_(scratch) {
    LoadScales(block + CodeBytes(layout.format().values, layout.head_dim() * kPageSlots) +
                   first_slot * blocks_ * static_cast<int>(sizeof(std::uint16_t)),
               kGroupSlots * blocks_, scratch);
  }
  HWY_INLINE VF Load(int slot, int channel) const {
    const int group = channel / kGroupSlots;
    const std::uint8_t* codes = codes_ + (slot * head_dim_ + group * kGroupSlots) * kBits / 8;
    const int at = kLevels ? slot : slot * blocks_ + group;
    return hn::Mul(LoadSigned<kBits, kLevels>(codes, channel % kGroupSlots),
                   hn::Set(DF(), scales_[at]));
  }

 private:
  const std::uint8_t* codes_;
  int head_dim_;
  int blocks_;
  const float* scales_;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace vericache
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
