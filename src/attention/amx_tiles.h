// Matrix products on the AMX unit: tiles of 16 rows of 64 bytes, multiplied as bfloat16 and summed
// as float32 (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS).
//
// A float32 number is taken as the sum of two bfloat16 ones, its high and its low part, which hold
// it to 2^-17 of it. Of the product of two such numbers the product of the low parts is left out:
// what remains errs by at most kAmxProductError of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vericache {

inline constexpr double kAmxProductError = 0x1p-15;

inline constexpr int kTileRows = 16;     // of a and c
inline constexpr int kTileColumns = 16;  // of b and c
inline constexpr int kTileStep = 32;     // numbers of a row of a, and of a column of b
inline constexpr int kMostRowTiles = 3;  // of one product

// Whether this processor has AMX with bfloat16 and the system lets this process use it.
bool HasAmx();

// Sets the calling thread's tiles up for products of `row_tiles` tiles of `rows` rows (1 to
// kTileRows), and puts them back as they were found (ggml uses them, too) at the end.
class AmxTiles {
 public:
  AmxTiles(int rows, int row_tiles);
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  alignas(64) std::uint8_t found_[64];
};

// c += a b, or c = a b. All strides in bytes.
struct TileProduct {
  int row_tiles = 1;  // 1 to kMostRowTiles; all rows of a tile are computed
  int column_tiles = 1;
  int steps = 1;  // of kTileStep numbers
  bool adds = false;

  const std::uint16_t* a_high = nullptr;  // [row][steps * kTileStep]
  const std::uint16_t* a_low = nullptr;
  std::size_t a_stride = 0;

  // [step][kTileStep / 2][column]: each word holds two numbers of a column, the first one low.
  const std::uint32_t* b_high = nullptr;
  const std::uint32_t* b_low = nullptr;  // nullptr: all zero
  std::size_t b_stride = 0;              // from a pair to the next
  std::size_t b_step_stride = 0;

  float* c = nullptr;  // [row][column]
  std::size_t c_stride = 0;
};

// Needs an AmxTiles of the calling thread for as many tiles of rows. Each number of c is a sum in
// the same order however many rows and columns are computed together.
void Multiply(const TileProduct& product);

}  // namespace vericache
