// Counter-based noise: a number that looks random, for what it is drawn for.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "base/types.h"

namespace vericache {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
// generators"): a bijection whose outputs for a counter times the golden ratio pass for random.
constexpr std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}
inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

// One number for all of `counters`, in their order.
constexpr std::uint64_t NoiseKey(std::uint64_t seed,
                                 std::initializer_list<std::uint64_t> counters) {
  std::uint64_t key = Mix(seed + kGolden);
  for (const std::uint64_t counter : counters) {
    key = Mix(key + kGolden * (counter + 1));
  }
  return key;
}

// Of 2^52 numbers in (0, 1), all equally likely.
constexpr double Uniform(std::uint64_t bits) {
  return (static_cast<double>(bits >> 12U) + 0.5) * 0x1p-52;
}

// Gumbel noise of one token. It lies between -log(53 log 2) and 53 log 2.
inline double GumbelNoise(std::uint64_t key, TokenId token) {
  const std::uint64_t bits = Mix(key + kGolden * (static_cast<std::uint64_t>(Raw(token)) + 1));
  return -std::log(-std::log(Uniform(bits)));
}

// What is further below the best logit, in nats, than the smallest and the largest noise are apart
// is never picked, and adds less to a sum of probabilities than a double's rounding.
inline constexpr double kNoiseRange = 40.4;

}  // namespace vericache
