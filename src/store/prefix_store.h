// Full caches of prompts' beginnings, kept for prompts that begin alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "store/full_store.h"

namespace vericache {

// Names a chunk of tokens together with everything before it, and what computed it.
struct PrefixKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  auto operator<=>(const PrefixKey&) const = default;
  std::string Text() const;  // 32 hexadecimal digits
};

// A prompt is cut into chunks of this many tokens; a rest is not kept.
inline constexpr int kPrefixTokens = 256;

// The keys of the whole chunks of `tokens`: XXH3-128 over a chunk, chained over those before it,
// beginning with `root`.
std::vector<PrefixKey> PrefixKeys(std::span<const TokenId> tokens, const PrefixKey& root);

// A key for the beginning of a chain: XXH3-128 over `identity`, which names model and formats.
PrefixKey PrefixRoot(std::string_view identity);

struct PrefixStoreOptions {
  GroupShape shape;
  int groups = 4;                               // page groups of a chunk
  Bytes memory;                                 // of kept chunks; the least recently used go first
  std::optional<std::filesystem::path> folder;  // on disk instead: kept until someone deletes them
};

// Chunks by key, in memory or as files. A file appears under its name only when it is whole, and
// has a checksum over each group, so that a restart finds whole chunks only. May be used by several
// threads.
class PrefixStore {
 public:
  // Throws UserError where the folder cannot be used.
  explicit PrefixStore(PrefixStoreOptions options);

  // How many chunks from the first on are there.
  int Lookup(std::span<const PrefixKey> keys) const;

  // Keeps a chunk, in place of an earlier one of this key: its groups after each other, each of
  // shape.bytes(). Throws StoreError.
  void Save(const PrefixKey& key, std::span<const std::byte> groups);

  // Fills the groups' pages. Throws StoreError where the chunk is not there any more or not what
  // was saved; such a chunk is forgotten.
  void Load(const PrefixKey& key, std::span<const std::vector<std::byte*>> groups);

  std::size_t chunk_bytes() const {
    return static_cast<std::size_t>(options_.groups) * options_.shape.bytes();
  }

 private:
  struct Chunk {
    std::shared_ptr<const std::vector<std::byte>> data;
    std::list<PrefixKey>::iterator use;
  };

  std::filesystem::path PathOf(const PrefixKey& key) const;
  std::vector<std::byte> ReadFile(const PrefixKey& key) const;
  void WriteFile(const PrefixKey& key, std::span<const std::byte> groups) const;

  PrefixStoreOptions options_;
  mutable std::mutex mutex_;
  std::map<PrefixKey, Chunk> chunks_;
  std::list<PrefixKey> uses_;  // the latest first
};

}  // namespace vericache
