// A link on a virtual clock: serial, the transfer that is due first before the others, also in
// between, as store/link.h serves them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/types.h"

namespace vericache {

class VirtualLink {
 public:
  struct Transfer {
    int request = 0;
    Bytes bytes;
    double seconds = 0.0;  // of the link's time
    double begin = 0.0;    // when it was first served
    double end = 0.0;
  };

  // Times never decrease from call to call, but for a hair. `due`: the smallest first; equal ones
  // in the order of their starts.
  void Start(int request, Bytes bytes, double seconds, std::int64_t due, double now);

  // A transfer that has ended by `now`, the earliest first; nullopt where there is none (any more).
  std::optional<Transfer> Ended(double now);

  // When the next one ends, if none is started meanwhile; nullopt where nothing moves.
  std::optional<double> next() const;

  // Whether a transfer is under way or waits.
  bool busy(double now);
  // How long it was busy until `now`.
  double busy_seconds(double now);

 private:
  struct Pending {
    Transfer transfer;
    std::int64_t due = 0;
    double left = 0.0;
    bool served = false;
  };

  std::size_t MostUrgent() const;
  void RunUntil(double now);

  double time_ = 0.0;
  double busy_ = 0.0;
  std::vector<Pending> pending_;
  std::vector<Transfer> ended_;
};

}  // namespace vericache
