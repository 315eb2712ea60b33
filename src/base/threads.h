#pragma once

#include <algorithm>
#include <thread>

namespace vericache {

// As many as the machine runs at once; at least 1.
inline int HardwareThreads() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace vericache
