#include "kvcache/number_format.h"

#include <algorithm>

namespace vericache {

std::optional<NumberFormat> ParseNumberFormat(std::string_view name) {
  const auto found = std::ranges::find(kNumberFormats, name, &FormatTraits::name);
  return found == kNumberFormats.end() ? std::nullopt : std::optional(found->format);
}

}  // namespace vericache
