#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace vericache {

// JSON as text; bytes that make no character are replaced by U+FFFD.
inline std::string Dump(const nlohmann::ordered_json& object, int indent = -1) {
  return object.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace vericache
