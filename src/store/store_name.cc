#include "base/error.h"
#include "store/full_store.h"

namespace vericache {

StoreName ParseStoreName(const std::string& text) {
  const std::string disk = "disk:";
  if (text == "memory") {
    return {};
  }
  if (text.starts_with(disk) && text.size() > disk.size()) {
    return {.folder = text.substr(disk.size())};
  }
  throw UserError("unknown full store '" + text + "'; known are memory and disk:PATH");
}

}  // namespace vericache
