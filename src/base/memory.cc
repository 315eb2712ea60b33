#include "base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
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

// File pages that the kernel drops when a control group needs room: they count as used there.
std::uint64_t DroppableFilePages(const std::filesystem::path& group) {
  std::ifstream file(group / "memory.stat");
  std::string key;
  std::uint64_t value = 0;
  std::uint64_t sum = 0;
  while (file >> key >> value) {
    sum += key == "active_file" || key == "inactive_file" ? value : 0;
  }
  return sum;
}

// Control groups, version 2: this process's own and those above it. memory.max is a number or
// "max". Inside a container /proc/self/cgroup often says "/", and the limit is at the root.
std::uint64_t GroupAvailable() {
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::ifstream own("/proc/self/cgroup");
  std::string line;
  std::filesystem::path group = root;
  while (std::getline(own, line)) {
    if (line.starts_with("0::/")) {
      group = root / line.substr(4);
    }
  }
  std::uint64_t available = kNoLimit;
  for (;; group = group.parent_path()) {
    std::ifstream max_file(group / "memory.max");
    std::ifstream current_file(group / "memory.current");
    std::uint64_t max = 0;
    std::uint64_t current = 0;
    if (max_file >> max && current_file >> current) {
      const std::uint64_t used = current - std::min(current, DroppableFilePages(group));
      available = std::min(available, max > used ? max - used : 0);
    }
    if (group == root || group == group.root_path()) {
      return available;
    }
  }
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
