#include "base/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/memory.h"

namespace vericache {
namespace {

// Sums eight streams of words, so that additions do not wait for each other.
std::uint64_t Sum(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      sums[j] += words[i + j];
    }
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace

double MeasureReadBandwidth(int threads, Bytes bytes) {
  constexpr int kPasses = 6;
  constexpr std::size_t kWordsAPass = std::size_t{32} << 20U;
  const auto count = static_cast<std::size_t>(threads);
  const std::size_t part = std::max<std::size_t>(8, bytes.count / sizeof(std::uint64_t) / count);
  const std::size_t times = std::max<std::size_t>(1, kWordsAPass / (part * count));
  RequireMemory({part * count * sizeof(std::uint64_t)}, "measuring the read bandwidth");
  const std::vector<std::uint64_t> buffer(part * count, 1);
  std::atomic<std::uint64_t> sink{0};
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Clock::time_point start = Clock::now();
    {
      std::vector<std::jthread> readers;
      readers.reserve(count);
      for (std::size_t t = 0; t < count; ++t) {
        readers.emplace_back([&, t] {
          for (std::size_t i = 0; i < times; ++i) {
            sink += Sum(buffer.data() + part * t, part);
          }
        });
      }
    }
    const auto read = static_cast<double>(buffer.size() * sizeof(std::uint64_t) * times);
    best = std::max(best, read / SecondsSince(start));
  }
  return best;
}

}  // namespace vericache
