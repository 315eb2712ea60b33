#include "attention/amx_tiles.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "base/check.h"

namespace vericache {
namespace {

// Instructions name tiles by literals. b's are 6 and 7, with one tile of rows, or 7.
bool IsOfB(std::size_t tile, int row_tiles) { return tile == 7 || (tile == 6 && row_tiles == 1); }

void Configure(const std::uint8_t* configuration) {
  // GCC's intrinsic mentions the first eight bytes only.
  __asm__ volatile("" : : "r"(configuration) : "memory");
  _tile_loadconfig(configuration);
}

// The tiles of b from a column on; `low` is nullptr where it is all zero.
struct ColumnsOfB {
  ColumnsOfB(const TileProduct& p, int step, int column)
      : high(At(p, p.b_high, step, column)),
        low(p.b_low == nullptr ? nullptr : At(p, p.b_low, step, column)) {}

  static const std::uint32_t* At(const TileProduct& p, const std::uint32_t* part, int step,
                                 int column) {
    return part + static_cast<std::size_t>(step) * p.b_step_stride / sizeof(*part) +
           kTileColumns * column;
  }

  const std::uint32_t* high;
  const std::uint32_t* low;
};

// One tile of rows: c's are 0 to 3, a's parts 4 and 5.
template <int kColumnTiles>
void MultiplyOneRowTile(const TileProduct& p, int column) {
  float* const c = p.c + kTileColumns * column;
  if (p.adds) {
    _tile_loadd(0, c, p.c_stride);
    if constexpr (kColumnTiles > 1) _tile_loadd(1, c + kTileColumns, p.c_stride);
    if constexpr (kColumnTiles > 2) _tile_loadd(2, c + 2 * kTileColumns, p.c_stride);
    if constexpr (kColumnTiles > 3) _tile_loadd(3, c + 3 * kTileColumns, p.c_stride);
  } else {
    _tile_zero(0);
    if constexpr (kColumnTiles > 1) _tile_zero(1);
    if constexpr (kColumnTiles > 2) _tile_zero(2);
    if constexpr (kColumnTiles > 3) _tile_zero(3);
  }
  for (int step = 0; step < p.steps; ++step) {
    const ColumnsOfB b(p, step, column);
    _tile_loadd(4, p.a_high + step * kTileStep, p.a_stride);
    _tile_loadd(5, p.a_low + step * kTileStep, p.a_stride);
    _tile_loadd(6, b.high, p.b_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(0, 5, 6);
    if constexpr (kColumnTiles > 1) {
      _tile_loadd(7, b.high + kTileColumns, p.b_stride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(1, 5, 7);
    }
    if constexpr (kColumnTiles > 2) {
      _tile_loadd(6, b.high + 2 * kTileColumns, p.b_stride);
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kColumnTiles > 3) {
      _tile_loadd(7, b.high + 3 * kTileColumns, p.b_stride);
      _tile_dpbf16ps(3, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (b.low == nullptr) {
      continue;
    }
    _tile_loadd(6, b.low, p.b_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColumnTiles > 1) {
      _tile_loadd(7, b.low + kTileColumns, p.b_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kColumnTiles > 2) {
      _tile_loadd(6, b.low + 2 * kTileColumns, p.b_stride);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (kColumnTiles > 3) {
      _tile_loadd(7, b.low + 3 * kTileColumns, p.b_stride);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, c, p.c_stride);
  if constexpr (kColumnTiles > 1) _tile_stored(1, c + kTileColumns, p.c_stride);
  if constexpr (kColumnTiles > 2) _tile_stored(2, c + 2 * kTileColumns, p.c_stride);
  if constexpr (kColumnTiles > 3) _tile_stored(3, c + 3 * kTileColumns, p.c_stride);
}

// Two or three tiles of rows, one of columns: c's are 0 to 2, of the rows below each other; a's
// parts take turns in 3 to 6.
template <int kRowTiles>
void MultiplyRowTiles(const TileProduct& p, int column) {
  float* const c = p.c + kTileColumns * column;
  const std::size_t down = kTileRows * p.c_stride / sizeof(float);
  const std::size_t next = kTileRows * p.a_stride / sizeof(std::uint16_t);
  if (p.adds) {
    _tile_loadd(0, c, p.c_stride);
    _tile_loadd(1, c + down, p.c_stride);
    if constexpr (kRowTiles > 2) _tile_loadd(2, c + 2 * down, p.c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kRowTiles > 2) _tile_zero(2);
  }
  for (int step = 0; step < p.steps; ++step) {
    const ColumnsOfB b(p, step, column);
    const std::uint16_t* const high = p.a_high + step * kTileStep;
    const std::uint16_t* const low = p.a_low + step * kTileStep;
    _tile_loadd(7, b.high, p.b_stride);
    _tile_loadd(3, high, p.a_stride);
    _tile_dpbf16ps(0, 3, 7);
    _tile_loadd(4, high + next, p.a_stride);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRowTiles > 2) {
      _tile_loadd(5, high + 2 * next, p.a_stride);
      _tile_dpbf16ps(2, 5, 7);
    }
    _tile_loadd(6, low, p.a_stride);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, low + next, p.a_stride);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (kRowTiles > 2) {
      _tile_loadd(6, low + 2 * next, p.a_stride);
      _tile_dpbf16ps(2, 6, 7);
    }
    if (b.low != nullptr) {
      _tile_loadd(7, b.low, p.b_stride);
      _tile_dpbf16ps(0, 3, 7);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kRowTiles > 2) _tile_dpbf16ps(2, 5, 7);
    }
  }
  _tile_stored(0, c, p.c_stride);
  _tile_stored(1, c + down, p.c_stride);
  if constexpr (kRowTiles > 2) _tile_stored(2, c + 2 * down, p.c_stride);
}

void MultiplyOneRow(const TileProduct& p) {
  int column = 0;
  for (; column + 4 <= p.column_tiles; column += 4) {
    MultiplyOneRowTile<4>(p, column);
  }
  switch (p.column_tiles - column) {
    case 1:
      return MultiplyOneRowTile<1>(p, column);
    case 2:
      return MultiplyOneRowTile<2>(p, column);
    case 3:
      return MultiplyOneRowTile<3>(p, column);
    default:
      return;
  }
}

}  // namespace

bool HasAmx() {
  static const bool kHas = [] {
    constexpr unsigned kBf16 = 1U << 22U;
    constexpr unsigned kTile = 1U << 24U;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) {
      return false;
    }
    // Linux gives the tiles' registers to processes that ask for them (Documentation/arch/x86/
    // xstate.rst): ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA.
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  }();
  return kHas;
}

AmxTiles::AmxTiles(int rows, int row_tiles) {
  Check(rows >= 1 && rows <= kTileRows, "rows of a tile");
  // Palette 1: bytes 16 on are the columns' bytes of each tile, bytes 48 on its rows.
  alignas(64) std::uint8_t wanted[64] = {1};
  for (std::size_t tile = 0; tile < 8; ++tile) {
    const std::uint16_t bytes = 64;
    std::memcpy(wanted + 16 + 2 * tile, &bytes, sizeof(bytes));
    wanted[48 + tile] = static_cast<std::uint8_t>(IsOfB(tile, row_tiles) ? kTileStep / 2 : rows);
  }
  _tile_storeconfig(found_);
  Configure(wanted);
}

AmxTiles::~AmxTiles() {
  if (found_[0] == 0) {
    _tile_release();
  } else {
    Configure(found_);
  }
}

void Multiply(const TileProduct& product) {
  if (product.row_tiles == 1) {
    return MultiplyOneRow(product);
  }
  for (int column = 0; column < product.column_tiles; ++column) {
    if (product.row_tiles == 2) {
      MultiplyRowTiles<2>(product, column);
    } else {
      MultiplyRowTiles<3>(product, column);
    }
  }
}

}  // namespace vericache

#else  // no AMX

namespace vericache {

bool HasAmx() { return false; }
AmxTiles::AmxTiles(int /*rows*/, int /*row_tiles*/) : found_{} {}
AmxTiles::~AmxTiles() = default;
void Multiply(const TileProduct& /*product*/) {}

}  // namespace vericache

#endif
