#include "base/types.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace vericache {

std::string HumanBytes(Bytes bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes.count);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

Bytes ParseBytes(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 8> kUnits = {{{"", 1.0},
                                                                          {"B", 1.0},
                                                                          {"KB", 1e3},
                                                                          {"KiB", 1024.0},
                                                                          {"MB", 1e6},
                                                                          {"MiB", 1048576.0},
                                                                          {"GB", 1e9},
                                                                          {"GiB", 1073741824.0}}};
  double value = -1.0;
  const char* const end = text.data() + text.size();
  const auto [unit_begin, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && std::isfinite(value) && value >= 0.0) {
    for (const auto& [unit, factor] : kUnits) {
      if (std::string_view(unit_begin, end) == unit && value * factor < 1e18) {
        return {static_cast<std::uint64_t>(value * factor)};
      }
    }
  }
  throw UserError("'" + text +
                  "' is not a size: write a number and B, KB, KiB, MB, MiB, GB or GiB");
}

}  // namespace vericache
