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

// Instructions name tiles by literals: c's are 0 to 5, a's is 6, b's 7.
constexpr int kB = 7;

void Configure(const std::uint8_t* configuration) {
  // GCC's intrinsic mentions the first eight bytes only.
  __asm__ volatile("" : : "r"(configuration) : "memory");
  _tile_loadconfig(configuration);
}

// One step of one of the three partial products: c += a b for all tiles of c.
template <int kRowTiles, int kColumnTiles>
void Step(const std::uint16_t* a, std::size_t a_stride, const std::uint32_t* b,
          std::size_t b_stride) {
  const std::size_t next = kTileRows * a_stride / sizeof(*a);
  _tile_loadd(7, b, b_stride);
  _tile_loadd(6, a, a_stride);
  _tile_dpbf16ps(0, 6, 7);
  if constexpr (kRowTiles > 1) {
    _tile_loadd(6, a + next, a_stride);
    _tile_dpbf16ps(1, 6, 7);
  }
  if constexpr (kRowTiles > 2) {
    _tile_loadd(6, a + 2 * next, a_stride);
    _tile_dpbf16ps(2, 6, 7);
  }
  if constexpr (kColumnTiles > 1) {
    _tile_loadd(7, b + kTileColumns, b_stride);
    if constexpr (kRowTiles > 2) {
      _tile_dpbf16ps(5, 6, 7);
    }
    if constexpr (kRowTiles > 1) {
      if constexpr (kRowTiles > 2) {
        _tile_loadd(6, a + next, a_stride);
      }
      _tile_dpbf16ps(4, 6, 7);
      _tile_loadd(6, a, a_stride);
    }
    _tile_dpbf16ps(3, 6, 7);
  }
}

template <int kRowTiles, int kColumnTiles>
void MultiplyTiles(const TileProduct& p) {
  const std::size_t down = kTileRows * p.c_stride / sizeof(float);
  if (p.adds) {
    _tile_loadd(0, p.c, p.c_stride);
    if constexpr (kRowTiles > 1) _tile_loadd(1, p.c + down, p.c_stride);
    if constexpr (kRowTiles > 2) _tile_loadd(2, p.c + 2 * down, p.c_stride);
    if constexpr (kColumnTiles > 1) {
      float* const right = p.c + kTileColumns;
      _tile_loadd(3, right, p.c_stride);
      if constexpr (kRowTiles > 1) _tile_loadd(4, right + down, p.c_stride);
      if constexpr (kRowTiles > 2) _tile_loadd(5, right + 2 * down, p.c_stride);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }
  const std::size_t b_step = p.b_step_stride / sizeof(std::uint32_t);
  for (std::size_t step = 0; step < static_cast<std::size_t>(p.steps); ++step) {
    const std::uint16_t* const high = p.a_high + step * kTileStep;
    const std::uint16_t* const low = p.a_low + step * kTileStep;
    Step<kRowTiles, kColumnTiles>(high, p.a_stride, p.b_high + step * b_step, p.b_stride);
    Step<kRowTiles, kColumnTiles>(low, p.a_stride, p.b_high + step * b_step, p.b_stride);
    if (p.b_low != nullptr) {
      Step<kRowTiles, kColumnTiles>(high, p.a_stride, p.b_low + step * b_step, p.b_stride);
    }
  }
  _tile_stored(0, p.c, p.c_stride);
  if constexpr (kRowTiles > 1) _tile_stored(1, p.c + down, p.c_stride);
  if constexpr (kRowTiles > 2) _tile_stored(2, p.c + 2 * down, p.c_stride);
  if constexpr (kColumnTiles > 1) {
    float* const right = p.c + kTileColumns;
    _tile_stored(3, right, p.c_stride);
    if constexpr (kRowTiles > 1) _tile_stored(4, right + down, p.c_stride);
    if constexpr (kRowTiles > 2) _tile_stored(5, right + 2 * down, p.c_stride);
  }
}

template <int kColumnTiles>
void MultiplyColumns(const TileProduct& product) {
  switch (product.row_tiles) {
    case 1:
      return MultiplyTiles<1, kColumnTiles>(product);
    case 2:
      return MultiplyTiles<2, kColumnTiles>(product);
    default:
      return MultiplyTiles<3, kColumnTiles>(product);
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

AmxTiles::AmxTiles(int rows) {
  Check(rows >= 1 && rows <= kTileRows, "rows of a tile");
  // Palette 1: bytes 16 on are the columns' bytes of each tile, bytes 48 on its rows.
  alignas(64) std::uint8_t wanted[64] = {1};
  for (std::size_t tile = 0; tile < 8; ++tile) {
    const std::uint16_t bytes = 64;
    std::memcpy(wanted + 16 + 2 * tile, &bytes, sizeof(bytes));
    wanted[48 + tile] = static_cast<std::uint8_t>(tile == kB ? kTileStep / 2 : rows);
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
  if (product.column_tiles == 1) {
    MultiplyColumns<1>(product);
  } else {
    MultiplyColumns<2>(product);
  }
}

}  // namespace vericache

#else  // no AMX

namespace vericache {

bool HasAmx() { return false; }
AmxTiles::AmxTiles(int /*rows*/) : found_{} {}
AmxTiles::~AmxTiles() = default;
void Multiply(const TileProduct& /*product*/) {}

}  // namespace vericache

#endif
