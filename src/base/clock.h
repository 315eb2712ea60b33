#pragma once

#include <chrono>

namespace vericache {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
inline double SecondsSince(Clock::time_point start) { return Seconds(Clock::now() - start); }

}  // namespace vericache
