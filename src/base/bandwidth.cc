#include "base/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

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

double MeasureReadBandwidth(int threads) {
  constexpr std::size_t kWords = std::size_t{32} << 20U;  // 256 MiB in all
  constexpr int kPasses = 6;
  const std::size_t part = kWords / static_cast<std::size_t>(threads);
  RequireMemory({kWords * sizeof(std::uint64_t)}, "measuring the read bandwidth");
  const std::vector<std::uint64_t> buffer(part * static_cast<std::size_t>(threads), 1);
  std::atomic<std::uint64_t> sink{0};
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> readers;
      readers.reserve(static_cast<std::size_t>(threads));
      for (int t = 0; t < threads; ++t) {
        readers.emplace_back(
            [&, t] { sink += Sum(buffer.data() + part * static_cast<std::size_t>(t), part); });
      }
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(buffer.size() * sizeof(std::uint64_t)) / seconds);
  }
  return best;
}

}  // namespace vericache
