#include "store/prefix_store.h"

#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/error.h"

namespace vericache {
namespace {

PrefixKey KeyOf(XXH128_hash_t hash) { return {.low = hash.low64, .high = hash.high64}; }

// Of a chunk's file: what it is, then a checksum for each group; then the groups.
struct Header {
  std::array<char, 8> magic = {'V', 'C', 'P', 'R', 'E', 'F', 'I', 'X'};
  std::uint32_t version = 1;
  std::uint32_t groups = 0;
  std::uint64_t group_bytes = 0;
  PrefixKey key;

  bool operator==(const Header&) const = default;
};

}  // namespace

std::string PrefixKey::Text() const {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text.data();
}

PrefixKey PrefixRoot(std::string_view identity) {
  return KeyOf(XXH3_128bits(identity.data(), identity.size()));
}

std::vector<PrefixKey> PrefixKeys(std::span<const TokenId> tokens, const PrefixKey& root) {
  std::vector<PrefixKey> keys;
  PrefixKey last = root;
  for (std::size_t begin = 0; begin + kPrefixTokens <= tokens.size(); begin += kPrefixTokens) {
    std::array<std::byte, sizeof(PrefixKey) + kPrefixTokens * sizeof(TokenId)> bytes{};
    std::memcpy(bytes.data(), &last, sizeof(last));
    std::memcpy(bytes.data() + sizeof(last), tokens.data() + begin,
                kPrefixTokens * sizeof(TokenId));
    last = KeyOf(XXH3_128bits(bytes.data(), bytes.size()));
    keys.push_back(last);
  }
  return keys;
}

PrefixStore::PrefixStore(PrefixStoreOptions options) : options_(std::move(options)) {
  if (!options_.folder) {
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(*options_.folder, error);
  if (error || access(options_.folder->c_str(), W_OK | X_OK) != 0) {
    throw UserError(options_.folder->string() + ": cannot be used to keep prefixes (" +
                    (error ? error.message() : "no right to write there") + ")");
  }
}

std::filesystem::path PrefixStore::PathOf(const PrefixKey& key) const {
  return *options_.folder / (key.Text() + ".prefix");
}

int PrefixStore::Lookup(std::span<const PrefixKey> keys) const {
  const std::lock_guard lock(mutex_);
  int found = 0;
  for (const PrefixKey& key : keys) {
    std::error_code ignored;
    if (!(options_.folder ? std::filesystem::exists(PathOf(key), ignored)
                          : chunks_.contains(key))) {
      break;
    }
    ++found;
  }
  return found;
}

void PrefixStore::Save(const PrefixKey& key, std::span<const std::byte> groups) {
  Check(groups.size() == chunk_bytes(), "a whole chunk");
  if (options_.folder) {
    WriteFile(key, groups);
    return;
  }
  auto data = std::make_shared<const std::vector<std::byte>>(groups.begin(), groups.end());
  const std::lock_guard lock(mutex_);
  if (chunks_.contains(key) || data->size() > options_.memory.count) {
    return;
  }
  uses_.push_front(key);
  chunks_[key] = {.data = std::move(data), .use = uses_.begin()};
  while (chunks_.size() * chunk_bytes() > options_.memory.count) {
    chunks_.erase(uses_.back());
    uses_.pop_back();
  }
}

void PrefixStore::Load(const PrefixKey& key, std::span<const std::vector<std::byte*>> groups) {
  std::shared_ptr<const std::vector<std::byte>> data;
  if (options_.folder) {
    data = std::make_shared<const std::vector<std::byte>>(ReadFile(key));
  } else {
    const std::lock_guard lock(mutex_);
    const auto found = chunks_.find(key);
    if (found == chunks_.end()) {
      throw StoreError("a prefix was dropped to make room before it was read");
    }
    uses_.splice(uses_.begin(), uses_, found->second.use);
    data = found->second.data;
  }
  const std::byte* from = data->data();
  for (const std::vector<std::byte*>& pages : groups) {
    for (std::byte* page : pages) {
      std::memcpy(page, from, options_.shape.page_bytes);
      from += options_.shape.page_bytes;
    }
  }
}

void PrefixStore::WriteFile(const PrefixKey& key, std::span<const std::byte> groups) const {
  static std::atomic<int> counter{0};
  const std::filesystem::path path = PathOf(key);
  std::error_code error;
  const std::filesystem::path part =
      path.string() + "." + std::to_string(getpid()) + "-" + std::to_string(counter++) + ".part";
  {
    std::ofstream file(part, std::ios::binary);
    const Header header{.groups = static_cast<std::uint32_t>(options_.groups),
                        .group_bytes = options_.shape.bytes(),
                        .key = key};
    file.write(reinterpret_cast<const char*>(&header), sizeof(header));
    for (int group = 0; group < options_.groups; ++group) {
      const std::size_t at = static_cast<std::size_t>(group) * options_.shape.bytes();
      const XXH64_hash_t sum = XXH3_64bits(groups.data() + at, options_.shape.bytes());
      file.write(reinterpret_cast<const char*>(&sum), sizeof(sum));
    }
    file.write(reinterpret_cast<const char*>(groups.data()),
               static_cast<std::streamsize>(groups.size()));
    if (file.flush()) {
      file.close();
      std::filesystem::rename(part, path, error);
    }
    if (!file || error) {
      std::error_code ignored;
      std::filesystem::remove(part, ignored);
      throw StoreError(path.string() + ": cannot save a prefix; is the disk full?");
    }
  }
}

std::vector<std::byte> PrefixStore::ReadFile(const PrefixKey& key) const {
  const std::filesystem::path path = PathOf(key);
  std::ifstream file(path, std::ios::binary);
  Header header;
  std::vector<XXH64_hash_t> sums(static_cast<std::size_t>(options_.groups));
  std::vector<std::byte> data(chunk_bytes());
  const Header expected{.groups = static_cast<std::uint32_t>(options_.groups),
                        .group_bytes = options_.shape.bytes(),
                        .key = key};
  bool whole =
      file.read(reinterpret_cast<char*>(&header), sizeof(header)) && header == expected &&
      file.read(reinterpret_cast<char*>(sums.data()),
                static_cast<std::streamsize>(sums.size() * sizeof(sums[0]))) &&
      file.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size()));
  for (std::size_t group = 0; whole && group < sums.size(); ++group) {
    whole = XXH3_64bits(data.data() + group * options_.shape.bytes(), options_.shape.bytes()) ==
            sums[group];
  }
  if (!whole) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw StoreError(path.string() + ": not a whole prefix; its checksum or header is wrong");
  }
  return data;
}

}  // namespace vericache
