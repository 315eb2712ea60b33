// Files of kept prefixes: one is read as it was saved, or refused with a StoreError and deleted,
// whatever is in it. An empty input grows into a whole file.
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "store/prefix_store.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace vericache {
namespace {

constexpr PrefixKey kKey{.low = 1, .high = 2};

// What comes before the checksums and the bytes.
constexpr std::size_t kMagicToKey = 8 + 8 + 8 + 16;

class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "vericache-fuzz-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) {
      std::abort();
    }
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path path() const { return path_; }
  std::filesystem::path file() const { return path() / (kKey.Text() + ".prefix"); }

 private:
  std::string path_;
};

const Folder& TheFolder() {
  static const Folder folder;
  return folder;
}
PrefixStore& Store() {
  static PrefixStore store({.memory = {}, .folder = TheFolder().path()});
  return store;
}

void Write(const std::uint8_t* data, std::size_t size) {
  std::ofstream(TheFolder().file(), std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

std::vector<std::uint8_t> Read() {
  std::ifstream file(TheFolder().file(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

std::vector<std::uint8_t> WholeFile() {
  const std::array<std::byte, 5> bytes = {std::byte{3}, std::byte{1}, std::byte{4}};
  Store().Save(kKey, bytes);
  return Read();
}

// Gives a file of one block the header and the checksum that its bytes should have.
void Mend(std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHeader = kMagicToKey + 8;
  if (size <= kHeader) {
    return;
  }
  static const std::vector<std::uint8_t> whole = WholeFile();
  std::copy_n(whole.begin(), kMagicToKey, data);
  const std::uint64_t bytes = size - kHeader;
  std::memcpy(data + 16, &bytes, sizeof(bytes));
  const XXH64_hash_t sum = XXH3_64bits(data + kHeader, bytes);
  std::memcpy(data + kMagicToKey, &sum, sizeof(sum));
}

}  // namespace
}  // namespace vericache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using vericache::kKey;
  using vericache::Require;
  using vericache::Store;
  vericache::Write(data, size);
  try {
    const std::shared_ptr<const std::vector<std::byte>> loaded = Store().Load(kKey);
    // Saved again it is the same file, but for what may follow the last block.
    Store().Save(kKey, *loaded);
    const std::vector<std::uint8_t> again = vericache::Read();
    Require(again.size() <= size && std::equal(again.begin(), again.end(), data));
  } catch (const vericache::StoreError&) {
    Require(Store().Lookup({&kKey, 1}) == 0);
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  if (size < 8) {
    const std::vector<std::uint8_t> whole = vericache::WholeFile();
    size = std::min(whole.size(), max_size);
    std::copy_n(whole.begin(), size, data);
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 2 == 0) {
    vericache::Mend(data, size);
  }
  return size;
}
