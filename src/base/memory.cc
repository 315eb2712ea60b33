#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/error.h"

namespace vericache {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

std::uint64_t SystemAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t value = 0;
  std::string unit;
  while (file >> key >> value) {
    std::getline(file, unit);
    if (key == "MemAvailable:") {
      return value * 1024;
    }
  }
  return kNoLimit;
}

// Control groups, version 2: memory.max is a number or "max".
std::uint64_t GroupAvailable() {
  std::ifstream max_file("/sys/fs/cgroup/memory.max");
  std::ifstream current_file("/sys/fs/cgroup/memory.current");
  std::uint64_t max = 0;
  std::uint64_t current = 0;
  if (!(max_file >> max) || !(current_file >> current)) {
    return kNoLimit;
  }
  return max > current ? max - current : 0;
}

// What `ulimit -v` leaves.
std::uint64_t AddressSpaceAvailable() {
  rlimit limit{};
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || !(file >> pages)) {
    return kNoLimit;
  }
  const std::uint64_t used = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace

Bytes AvailableMemory() {
  return {std::min({SystemAvailable(), GroupAvailable(), AddressSpaceAvailable()})};
}

void RequireMemory(Bytes needed, const std::string& what) {
  const Bytes available = AvailableMemory();
  if (needed > available) {
    throw UserError("too little memory for " + what + ": " + HumanBytes(needed) + " are needed, " +
                    HumanBytes(available) + " are available");
  }
}

}  // namespace vericache
