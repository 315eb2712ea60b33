// Caches of prompts and of their beginnings, kept for prompts that are alike or begin alike.
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

// The key of what `identity` made of all of `tokens`, such as a compressed cache.
PrefixKey WholeKey(std::span<const TokenId> tokens, const PrefixKey& root,
                   std::string_view identity);

struct PrefixStoreOptions {
  Bytes memory;  // for what is kept; the least recently used goes first
  std::optional<std::filesystem::path> folder;  // on disk instead: kept until someone deletes it
};

// Bytes by key, in memory or as files. A file appears under its name only when it is whole, and has
// a checksum over each kBlock, so that a restart finds only what is whole. May be used by several
// threads.
class PrefixStore {
 public:
  static constexpr std::size_t kBlock = std::size_t{1} << 20U;

  // Throws UserError where the folder cannot be used.
  explicit PrefixStore(PrefixStoreOptions options);

  // How many of the keys from the first on are there.
  int Lookup(std::span<const PrefixKey> keys) const;

  // Keeps the bytes, where they are not kept yet. Throws StoreError.
  void Save(const PrefixKey& key, std::span<const std::byte> bytes);

  // What was saved. Throws StoreError where it is not there any more, or damaged; then it is
  // forgotten.
  std::shared_ptr<const std::vector<std::byte>> Load(const PrefixKey& key);

 private:
  struct Kept {
    std::shared_ptr<const std::vector<std::byte>> data;
    std::list<PrefixKey>::iterator use;
  };

  std::filesystem::path PathOf(const PrefixKey& key) const;
  std::vector<std::byte> ReadFile(const PrefixKey& key) const;
  void WriteFile(const PrefixKey& key, std::span<const std::byte> bytes) const;

  PrefixStoreOptions options_;
  mutable std::mutex mutex_;
  std::map<PrefixKey, Kept> kept_;
  std::list<PrefixKey> uses_;  // the latest first
  std::size_t bytes_ = 0;      // kept in memory
};

}  // namespace vericache
