// Where full caches live while they are not in fast memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "base/types.h"

namespace vericache {

// What a store could not do. It concerns the request whose cache it was; others go on.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Full caches are moved in groups: the pages of all layers that hold the same slots, one page a
// layer, in the order of the layers.
struct GroupShape {
  int layers = 0;
  std::size_t page_bytes = 0;

  std::size_t bytes() const { return static_cast<std::size_t>(layers) * page_bytes; }
};

// One full cache in a store; it goes with the object. Used by one thread at a time.
class StoredCache {
 public:
  virtual ~StoredCache() = default;

  // Keeps a copy of group `group` in place of an earlier one; groups are first saved in ascending
  // order. Throws StoreError where it cannot, and then keeps no promise about that group.
  virtual void Save(int group, std::span<const std::byte* const> pages) = 0;

  // Fills the pages with what was saved last, or throws StoreError: what was saved, nothing else.
  virtual void Load(int group, std::span<std::byte* const> pages) = 0;
};

class FullStore {
 public:
  virtual ~FullStore() = default;
  // Room for one full cache. Throws StoreError.
  virtual std::unique_ptr<StoredCache> Create() = 0;
};

// In memory of its own, outside fast memory.
std::unique_ptr<FullStore> MakeMemoryStore(GroupShape shape);

// One file for each cache in `folder`, which is made where it is missing; a file is removed with
// its cache, and those of dead processes when a store is made. Every group has a checksum. Reads go
// around the page cache, by io_uring where the system has it.
// Throws UserError where the folder cannot be used.
std::unique_ptr<FullStore> MakeDiskStore(const std::filesystem::path& folder, GroupShape shape);

// What `--full-store` names: "memory" or "disk:PATH".
struct StoreName {
  std::optional<std::filesystem::path> folder;  // nullopt: memory
};
// Throws UserError, listing the stores, for anything else.
StoreName ParseStoreName(const std::string& text);

}  // namespace vericache
