// The formats that numbers of keys and values are held in, and what each is made of.
//
// Those that quantize hold b-bit codes, and scales that belong to kGroupSlots of them, or to a row:
//   block    ggml's q8_0 and q4_0 (ggml-quants.c): for each block of 32 channels of one token a
//            16-bit scale; number = scale * (code - 2^(b-1));
//   group    KIVI (Liu et al. 2024, arXiv 2402.02750; github.com/jy-yuan/KIVI): a 16-bit scale and
//            minimum for each group of 32 numbers, along the slots for keys (per channel), along
//            the channels for values (per token); number = minimum + scale * code;
//   token    RotateKV (Su et al. 2025, arXiv 2501.16383; github.com/ZunhaiSu/RotateKV): scale and
//            minimum along the channels for keys, too;
//   row      TurboQuant (Zandieh et al. 2025, arXiv 2504.19874): one 16-bit scale for all channels
//            of a token, and codes of the Lloyd-Max levels of a normal distribution, which is that
//            of the coordinates of a vector turned at random;
//   level    KVQuant (Hooper et al. 2024, arXiv 2401.18079): codes of calibrated levels between the
//            ends of a channel of keys, held before RoPE, or of a token's values, and what lies
//            beyond them apart, see kvcache/kvquant.h.
// Of the rotated ones what is held is Rotate(row), see kvcache/rotation.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace vericache {

inline constexpr int kGroupSlots = 32;  // slots of a half page; numbers of a group or block

enum class NumberFormat : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8,
  kQ4,
  kQ8R,
  kQ4R,
  kKivi4,
  kKivi2,
  kKivi4R,
  kKivi2R,
  kTurbo4,
  kTurbo3,
  kTurbo2,
  kRotate4,
  kRotate2,
  kKvQuant4,
  kKvQuant3,
  kKvQuant2,
};

enum class Grouping : std::uint8_t { kPlain, kBlocks, kGroups, kTokens, kRows, kLevels };

struct FormatTraits {
  NumberFormat format;
  std::string_view name;
  Grouping grouping;
  int bits;  // of a code, or of a plain number
  bool rotated;
};

// By the enumeration's order.
inline constexpr std::array<FormatTraits, 19> kNumberFormats = {{
    {NumberFormat::kF32, "f32", Grouping::kPlain, 32, false},
    {NumberFormat::kF16, "f16", Grouping::kPlain, 16, false},
    {NumberFormat::kBF16, "bf16", Grouping::kPlain, 16, false},
    {NumberFormat::kQ8, "q8", Grouping::kBlocks, 8, false},
    {NumberFormat::kQ4, "q4", Grouping::kBlocks, 4, false},
    {NumberFormat::kQ8R, "q8r", Grouping::kBlocks, 8, true},
    {NumberFormat::kQ4R, "q4r", Grouping::kBlocks, 4, true},
    {NumberFormat::kKivi4, "kivi4", Grouping::kGroups, 4, false},
    {NumberFormat::kKivi2, "kivi2", Grouping::kGroups, 2, false},
    {NumberFormat::kKivi4R, "kivi4r", Grouping::kGroups, 4, true},
    {NumberFormat::kKivi2R, "kivi2r", Grouping::kGroups, 2, true},
    {NumberFormat::kTurbo4, "turboquant4", Grouping::kRows, 4, true},
    {NumberFormat::kTurbo3, "turboquant3", Grouping::kRows, 3, true},
    {NumberFormat::kTurbo2, "turboquant2", Grouping::kRows, 2, true},
    {NumberFormat::kRotate4, "rotatekv4", Grouping::kTokens, 4, true},
    {NumberFormat::kRotate2, "rotatekv2", Grouping::kTokens, 2, true},
    {NumberFormat::kKvQuant4, "kvquant4", Grouping::kLevels, 4, false},
    {NumberFormat::kKvQuant3, "kvquant3", Grouping::kLevels, 3, false},
    {NumberFormat::kKvQuant2, "kvquant2", Grouping::kLevels, 2, false},
}};

constexpr const FormatTraits& Traits(NumberFormat format) {
  return kNumberFormats[static_cast<std::size_t>(format)];
}

// "f16", "kivi4", …
constexpr std::string_view Name(NumberFormat format) { return Traits(format).name; }
// nullopt for an unknown name.
std::optional<NumberFormat> ParseNumberFormat(std::string_view name);

// True for formats that quantize: they are written kGroupSlots slots at a time.
constexpr bool IsGrouped(NumberFormat format) {
  return Traits(format).grouping != Grouping::kPlain;
}

constexpr bool IsKvQuant(NumberFormat format) {
  return Traits(format).grouping == Grouping::kLevels;
}

// Bytes of one number of a plain (not grouped) format.
constexpr std::size_t NumberBytes(NumberFormat format) {
  return static_cast<std::size_t>(Traits(format).bits) / 8;
}

// Bytes of the codes of `count` numbers, count a multiple of kGroupSlots.
constexpr std::size_t CodeBytes(NumberFormat format, int count) {
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(Traits(format).bits) / 8;
}

// Levels of the row formats as bytes: number = scale * (level - 128). They are the Lloyd-Max
// levels of a normal distribution (Max 1960, "Quantizing for minimum distortion", table I) such
// that the largest is 127: a byte looks them up at every register's width, and rounding them to 127
// parts of it costs nothing beside the distance between two.
constexpr std::array<std::uint8_t, 16> RowLevels(int bits) {
  constexpr std::array<std::uint8_t, 16> kFour = {1,   32,  53,  70,  84,  97,  110, 122,
                                                  134, 146, 159, 172, 186, 203, 224, 255};
  constexpr std::array<std::uint8_t, 16> kThree = {1, 49, 83, 114, 142, 173, 207, 255};
  constexpr std::array<std::uint8_t, 16> kTwo = {1, 90, 166, 255};
  return bits == 4 ? kFour : bits == 3 ? kThree : kTwo;
}

}  // namespace vericache
