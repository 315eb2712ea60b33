#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "store/direct_file.h"
#include "store/full_store.h"

namespace vericache {
namespace {

constexpr const char* kSuffix = ".fullcache";

std::size_t RoundUp(std::size_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

// What the caches of a store share: where they lie, and memory to move a group through.
struct Folder {
  std::filesystem::path path;
  GroupShape shape;
  ReadQueue queue;
  Blocks buffer;
  int next = 0;

  std::size_t stride() const { return RoundUp(shape.bytes()); }
  std::span<std::byte> block() const { return {buffer.get(), stride()}; }
};

class DiskCache : public StoredCache {
 public:
  DiskCache(std::shared_ptr<Folder> folder, std::filesystem::path path)
      : folder_(std::move(folder)), path_(std::move(path)), file_(path_) {}
  ~DiskCache() override {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  void Save(int group, std::span<const std::byte* const> pages) override {
    const auto index = static_cast<std::size_t>(group);
    Check(index <= checksums_.size(), "groups are first saved in ascending order");
    const std::span<std::byte> block = folder_->block();
    const GroupShape& shape = folder_->shape;
    for (std::size_t layer = 0; layer < pages.size(); ++layer) {
      std::memcpy(block.data() + layer * shape.page_bytes, pages[layer], shape.page_bytes);
    }
    std::memset(block.data() + shape.bytes(), 0, block.size() - shape.bytes());
    if (index == checksums_.size()) {
      checksums_.push_back(0);
    }
    checksums_[index] = XXH3_64bits(block.data(), shape.bytes());
    try {
      file_.Write(index * folder_->stride(), block);
    } catch (const std::system_error& error) {
      throw StoreError(path_.string() + ": cannot save a full cache (" + error.code().message() +
                       "); free some room there or choose another --full-store");
    }
  }

  void Load(int group, std::span<std::byte* const> pages) override {
    const auto index = static_cast<std::size_t>(group);
    const std::span<std::byte> block = folder_->block();
    const GroupShape& shape = folder_->shape;
    try {
      // The open file would still be readable, but whoever deletes it wants it gone.
      if (access(path_.c_str(), F_OK) != 0) {
        throw StoreError(path_.string() + ": the full cache was deleted while in use");
      }
      folder_->queue.Read(file_.descriptor(), index * folder_->stride(), block);
    } catch (const std::system_error& error) {
      throw StoreError(path_.string() + ": cannot read a full cache back (" +
                       error.code().message() + ")");
    }
    if (XXH3_64bits(block.data(), shape.bytes()) != checksums_.at(index)) {
      throw StoreError(path_.string() + ": page group " + std::to_string(group) +
                       " has a wrong checksum; the storage returned other bytes than were written");
    }
    for (std::size_t layer = 0; layer < pages.size(); ++layer) {
      std::memcpy(pages[layer], block.data() + layer * shape.page_bytes, shape.page_bytes);
    }
  }

 private:
  std::shared_ptr<Folder> folder_;
  std::filesystem::path path_;
  DirectFile file_;
  std::vector<XXH64_hash_t> checksums_;
};

class DiskStore : public FullStore {
 public:
  explicit DiskStore(std::shared_ptr<Folder> folder) : folder_(std::move(folder)) {}

  std::unique_ptr<StoredCache> Create() override {
    while (true) {
      const std::filesystem::path path =
          folder_->path /
          (std::to_string(getpid()) + "-" + std::to_string(folder_->next++) + kSuffix);
      try {
        return std::make_unique<DiskCache>(folder_, path);
      } catch (const std::system_error& error) {
        // The name may be taken by another store of this process, or by a process of the same
        // number in another container.
        if (error.code() != std::errc::file_exists) {
          throw StoreError(path.string() + ": cannot be made (" + error.code().message() + ")");
        }
      }
    }
  }

 private:
  std::shared_ptr<Folder> folder_;
};

}  // namespace

std::unique_ptr<FullStore> MakeDiskStore(const std::filesystem::path& path, GroupShape shape) {
  try {
    std::filesystem::create_directories(path);
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == kSuffix) {
        RemoveUnused(entry.path());
      }
    }
  } catch (const std::filesystem::filesystem_error& error) {
    throw UserError(path.string() + ": cannot be used as a full store (" + error.code().message() +
                    ")");
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    throw UserError(path.string() + ": cannot be used as a full store (no right to write there)");
  }
  auto folder = std::make_shared<Folder>();
  folder->path = path;
  folder->shape = shape;
  folder->buffer = AllocateBlocks(folder->stride());
  return std::make_unique<DiskStore>(std::move(folder));
}

}  // namespace vericache
