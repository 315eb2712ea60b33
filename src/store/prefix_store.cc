#include "store/prefix_store.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace vericache {
namespace {

PrefixKey KeyOf(XXH128_hash_t hash) { return {.low = hash.low64, .high = hash.high64}; }

// Of a file: what it is, then a checksum for each block; then the blocks, of which the last may be
// shorter.
struct Header {
  std::array<char, 8> magic = {'V', 'C', 'P', 'R', 'E', 'F', 'I', 'X'};
  std::uint64_t version = 2;
  std::uint64_t bytes = 0;
  PrefixKey key;

  bool operator==(const Header&) const = default;
};

// The checksums of all blocks.
std::vector<XXH64_hash_t> Sums(std::span<const std::byte> bytes) {
  std::vector<XXH64_hash_t> sums;
  for (std::size_t at = 0; at < bytes.size(); at += PrefixStore::kBlock) {
    const auto block = bytes.subspan(at, std::min(PrefixStore::kBlock, bytes.size() - at));
    sums.push_back(XXH3_64bits(block.data(), block.size()));
  }
  return sums;
}

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

PrefixKey WholeKey(std::span<const TokenId> tokens, const PrefixKey& root,
                   std::string_view identity) {
  std::string text(identity);
  text.append(reinterpret_cast<const char*>(&root), sizeof(root));
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return PrefixRoot(text);
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
    if (!(options_.folder ? std::filesystem::exists(PathOf(key), ignored) : kept_.contains(key))) {
      break;
    }
    ++found;
  }
  return found;
}

void PrefixStore::Save(const PrefixKey& key, std::span<const std::byte> bytes) {
  if (options_.folder) {
    WriteFile(key, bytes);
    return;
  }
  auto data = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  const std::lock_guard lock(mutex_);
  if (kept_.contains(key) || data->size() > options_.memory.count) {
    return;
  }
  bytes_ += data->size();
  uses_.push_front(key);
  kept_[key] = {.data = std::move(data), .use = uses_.begin()};
  while (bytes_ > options_.memory.count) {
    const auto oldest = kept_.find(uses_.back());
    bytes_ -= oldest->second.data->size();
    kept_.erase(oldest);
    uses_.pop_back();
  }
}

std::shared_ptr<const std::vector<std::byte>> PrefixStore::Load(const PrefixKey& key) {
  if (options_.folder) {
    return std::make_shared<const std::vector<std::byte>>(ReadFile(key));
  }
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(key);
  if (found == kept_.end()) {
    throw StoreError("a prefix was dropped to make room before it was read");
  }
  uses_.splice(uses_.begin(), uses_, found->second.use);
  return found->second.data;
}

void PrefixStore::WriteFile(const PrefixKey& key, std::span<const std::byte> bytes) const {
  static std::atomic<int> counter{0};
  const std::filesystem::path path = PathOf(key);
  std::error_code error;
  const std::filesystem::path part =
      path.string() + "." + std::to_string(getpid()) + "-" + std::to_string(counter++) + ".part";
  std::ofstream file(part, std::ios::binary);
  const Header header{.bytes = bytes.size(), .key = key};
  const std::vector<XXH64_hash_t> sums = Sums(bytes);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(reinterpret_cast<const char*>(sums.data()),
             static_cast<std::streamsize>(sums.size() * sizeof(sums[0])));
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
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

std::vector<std::byte> PrefixStore::ReadFile(const PrefixKey& key) const {
  const std::filesystem::path path = PathOf(key);
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(path, ignored);
  std::ifstream file(path, std::ios::binary);
  Header header;
  std::vector<std::byte> bytes;
  bool whole = !ignored && file.read(reinterpret_cast<char*>(&header), sizeof(header)) &&
               header == Header{.bytes = header.bytes, .key = key} && header.bytes < size;
  if (whole) {
    std::vector<XXH64_hash_t> sums((header.bytes + kBlock - 1) / kBlock);
    bytes.resize(header.bytes);
    whole = file.read(reinterpret_cast<char*>(sums.data()),
                      static_cast<std::streamsize>(sums.size() * sizeof(sums[0]))) &&
            file.read(reinterpret_cast<char*>(bytes.data()),
                      static_cast<std::streamsize>(bytes.size())) &&
            Sums(bytes) == sums;
  }
  if (!whole) {
    std::filesystem::remove(path, ignored);
    throw StoreError(path.string() + ": not a whole prefix; its checksum or header is wrong");
  }
  return bytes;
}

}  // namespace vericache
