#pragma once

#include <cstdio>
#include <cstdlib>
#include <source_location>

namespace vericache {

// Aborts, naming the place, where `condition` is false: for what only a bug can cause. Active in
// release builds too, since an engine that goes on with broken state could emit wrong tokens.
inline void Check(bool condition, const char* what,
                  std::source_location where = std::source_location::current()) {
  if (condition) [[likely]] {
    return;
  }
  std::fprintf(stderr, "%s:%u: check failed: %s\n", where.file_name(),
               static_cast<unsigned>(where.line()), what);
  std::abort();
}

}  // namespace vericache
