// Devices and models as numbers, for the performance model.
#pragma once

#include <string>

#include "base/types.h"
#include "nlohmann/json.hpp"

namespace vericache {

struct DeviceProfile {
  std::string name;
  Bytes memory;                   // fast memory in all
  double memory_bandwidth = 0.0;  // of fast memory, bytes/s
  double link_bandwidth = 0.0;    // from the full store to fast memory, bytes/s
  double flops = 0.0;             // peak of dense 16-bit products, 1/s
  double near_bandwidth = 40e9;   // from a KV store to devices beside it, bytes/s
  double far_bandwidth = 1.2e9;   // to devices far from it, bytes/s
  // Where the same cores multiply and read caches in turn, as a CPU's do, and this was measured:
  // bytes of caches that attention goes over, by one row of a request each and by a verify, 1/s,
  // and what an iteration takes besides, whatever its rows, weights' reading included. Of 0 caches
  // are read at memory_bandwidth, and all overlaps.
  double draft_cache_bandwidth = 0.0;
  double verify_cache_bandwidth = 0.0;
  double iteration_s = 0.0;

  // BW_hbm / BW_inter.
  double rho() const { return memory_bandwidth / link_bandwidth; }
  bool in_turn() const { return draft_cache_bandwidth > 0.0; }
};

struct ModelShape {
  std::string name;
  Bytes weights;
  double parameters = 0.0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // Keys and values of one token in 16 bits, in all layers.
  Bytes kv_per_token() const {
    return {std::uint64_t{4} * static_cast<std::uint64_t>(layers) *
            static_cast<std::uint64_t>(kv_heads) * static_cast<std::uint64_t>(head_dim)};
  }
};

// A known device ("rtx-pro-6000", "2xh100-nvl", …) or a JSON file: `name`, `memory_bytes`,
// `memory_bandwidth`, `link_bandwidth`, `flops`, and optionally `near_bandwidth`, `far_bandwidth`.
// `vericache doctor --json` is such a file but for the link, which is then memory's own speed.
// `draft_cache_bandwidth`, `verify_cache_bandwidth` and `iteration_s` count where it has them.
// Throws UserError, listing the known ones, for anything else.
DeviceProfile FindDevice(const std::string& name_or_file);

// A known model ("mistral-24b", …). Throws UserError, listing the known ones.
ModelShape FindModelShape(const std::string& name);

}  // namespace vericache
