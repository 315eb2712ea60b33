// What is reserved of the link and of fast memory in the iterations ahead (arXiv 2605.17613,
// "BW ring", "HBM ring" and Algorithm 1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/types.h"

namespace vericache {

// The bytes of a full cache: whole groups of slots.
struct FullCacheSize {
  Bytes group;          // of `group_slots` slots in all layers
  int group_slots = 1;  // at least 1
  int slots = 0;        // held now
  int limit = 0;        // the most that it will ever hold

  // With `more` slots added.
  Bytes bytes(int more = 0) const {
    const int groups = (std::min(slots + more, limit) + group_slots - 1) / group_slots;
    return group * static_cast<std::uint64_t>(groups);
  }
};

// A reload that has its place. Iterations are counted from the first one ever run.
struct Reservation {
  std::int64_t begin = 0;   // the copy starts when this iteration does
  std::int64_t verify = 0;  // this iteration verifies; the copy has ended before it
  Bytes bytes;              // in fast memory throughout [begin, verify]
  // The link's time in each of [begin, verify), in units of 1 / ReloadRings::kIteration.
  std::vector<std::int64_t> link;

  // All of that in iterations.
  double iterations() const;
};

// The two rings. A reload that takes `l` iterations holds the link for l of the time before its
// verify, as late as it is free: all that is left of the iteration before, then of the one before
// that. From the first of these until its verify it holds fast memory.
//
// Where the link is free this is the paper's span of S = ceil(l) iterations, but for two things.
// The paper takes l / S of each of the S iterations: with l a little above 1 two such reloads never
// share an iteration, and almost half of the link is lost. And its span ends with the verify,
// [verify - S + 1, verify] on both rings; an iteration here is one graph, so what it reads must be
// there when it starts: the copy is one iteration earlier, and the memory is held for one more.
//
// Nothing is ever over-committed: in each iteration the link's time sums to at most one iteration
// and the memory, where something is reserved, to at most the room that this Reserve was given.
class ReloadRings {
 public:
  // The link's time in an iteration. Integers, so that what is released is what was reserved.
  static constexpr std::int64_t kIteration = std::int64_t{1} << 20;
  // Of a reload, in iterations: what takes longer is planned as if it took this long.
  static constexpr double kLongest = 1 << 20;

  // `window`: how many iterations ahead are looked at, at least 2. A reload that takes longer
  // than that is looked at as far as it needs.
  explicit ReloadRings(int window) : window_(window) {}

  // The number of the iteration that runs next.
  std::int64_t now() const { return now_; }

  // The place nearest to the wish: a verify after `draft_length` draft iterations, counted from the
  // next one to run; the earlier one of two equally near. A verify of `d` drafts needs the cache
  // and d + 1 new slots, in at most `room` bytes of which other reservations may hold a part.
  // `iterations` is l > 0. nullopt where nothing in the window fits both rings.
  std::optional<Reservation> Reserve(const FullCacheSize& cache, double iterations,
                                     int draft_length, Bytes room);

  // Takes a reservation again that was released and whose place nobody took since.
  void Restore(const Reservation& reservation);

  // Lets a reload begin with the next iteration, ahead of its place: it holds memory from then on,
  // and no more of the link. False, and nothing changed, where `room` does not allow it.
  bool HoldFromNow(Reservation& reservation, Bytes room);

  // Gives back what a reservation holds from the next iteration on.
  void Release(const Reservation& reservation);

  // The next iteration has run.
  void Advance();

  // The link's share reserved and the memory held `ahead` iterations after the next one.
  std::int64_t link(int ahead) const;
  Bytes memory(int ahead) const;
  // The most memory that any iteration ahead holds.
  Bytes peak_memory() const;

 private:
  struct Slot {
    std::int64_t link = 0;
    Bytes memory;
  };

  // The reservation of a verify `verify` iterations ahead; nullopt where it does not fit.
  std::optional<Reservation> Place(std::int64_t need, int verify, Bytes bytes, Bytes room) const;
  Slot& at(std::int64_t iteration);

  int window_;
  std::int64_t now_ = 0;
  std::deque<Slot> slots_;  // from the next iteration on; none beyond: free
};

}  // namespace vericache
