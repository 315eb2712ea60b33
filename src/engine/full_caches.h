// The moves of full caches between fast memory and the full store.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "store/full_store.h"
#include "store/link.h"

namespace vericache {

// What became of a move that has ended.
struct Move {
  enum class Kind { kSaved, kReloaded, kFailed };
  Kind kind = Kind::kFailed;
  std::string error;  // of a failed one
  Bytes bytes;
  double seconds = 0.0;
};

// One store, behind a link. A request's full cache is in fast memory while `request.full` has a
// value, and belongs to the link while a transfer of it is under way.
class FullCaches {
 public:
  // Throws UserError where the store cannot be used.
  FullCaches(const StoreName& name, GroupShape shape, Link& link);

  // Starts to save the slots that were added since the save before, if there was one, `slots` in
  // all, from their pages.
  void SaveAll(Request& request, int slots);

  // Likewise, but they are copied first, so that fast memory is free at once.
  void SaveRows(Request& request, int slots);

  // Starts to fill `request.full`, which has pages for `slots` slots, before iteration `due`.
  void Reload(Request& request, int slots, std::int64_t due);

  // The move of this request that has ended since the last call, if any did.
  std::optional<Move> Ended(Request& request);

 private:
  GroupShape shape_;
  std::unique_ptr<FullStore> store_;
  Link& link_;
};

}  // namespace vericache
