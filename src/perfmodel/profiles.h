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

  // BW_hbm / BW_inter.
  double rho() const { return memory_bandwidth / link_bandwidth; }
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
// Throws UserError, listing the known ones, for anything else.
DeviceProfile FindDevice(const std::string& name_or_file);

// A known model ("mistral-24b", …). Throws UserError, listing the known ones.
ModelShape FindModelShape(const std::string& name);

}  // namespace vericache
