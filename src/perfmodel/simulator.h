// The scheduler on a virtual clock: the code that serves requests, with a performance model in
// place of the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "perfmodel/equations.h"
#include "scheduler/scheduler.h"

namespace vericache {

struct SimulationOptions {
  DeviceProfile device;
  ModelShape model;
  Policy policy = Policy::kVeriCache;
  double compression = 0.2;
  int draft_length = 25;
  bool adaptive = false;
  AcceptanceModel acceptance;
  int requests = 100;
  double rate = 0.0;  // arrivals a second, a Poisson process; 0: all are there at the begin
  int context = 32'000;
  int new_tokens = 256;
  double spread = 0.0;  // context and new tokens vary by this share up and down, evenly
  // The contexts' caches are in the store already, compressed ones too, as with reused prefixes:
  // a request begins when its compressed cache (under full: its full one) has come over the link.
  bool stored_contexts = true;
  int batch = 4096;
  std::uint64_t seed = 1;
};

// A stretch of time of one request.
struct TimelineSpan {
  enum class Kind { kPrefill, kDraft, kReload, kVerify };
  Kind kind = Kind::kDraft;
  int request = 0;
  double begin = 0.0;
  double end = 0.0;
};

// Fast memory and the link, at one time.
struct OccupancySample {
  double time = 0.0;
  Bytes in_use;            // of fast memory, weights aside
  double link_busy = 0.0;  // share of the time since the sample before
  int active = 0;
};

struct SimulationResult {
  double seconds = 0.0;
  std::int64_t tokens = 0;
  std::int64_t iterations = 0;
  double link_busy = 0.0;  // share of the time
  Bytes link_bytes;
  Bytes memory_peak;  // weights aside
  Bytes memory_room;
  int most_active = 0;
  SchedulerCounts counts;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  std::vector<double> latencies;    // from arrival to the last token, by request
  std::vector<double> first_token;  // from arrival to the first one
  std::vector<OccupancySample> occupancy;

  double tokens_per_s() const {
    return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
  }
};

// Runs all requests to their ends. `on_span` is called for everything that a request does, in
// order of the begins within a request. Throws UserError where not even one request fits.
SimulationResult Simulate(const SimulationOptions& options,
                          const std::function<void(const TimelineSpan&)>& on_span = {});

// The value below which `share` of the values lie; 0 for none.
double Percentile(std::vector<double> values, double share);

}  // namespace vericache
