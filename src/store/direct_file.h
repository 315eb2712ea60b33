// A file that is read and written around the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace vericache {

// Offsets, sizes and addresses are multiples of this.
inline constexpr std::size_t kBlock = 4096;

struct FreeBlocks {
  void operator()(std::byte* data) const;
};
using Blocks = std::unique_ptr<std::byte, FreeBlocks>;

// Memory for whole blocks.
Blocks AllocateBlocks(std::size_t bytes);

// Many reads under way at once, where the system has io_uring.
class ReadQueue {
 public:
  // `use_io_uring` false: one read after the other, as on systems without it.
  explicit ReadQueue(bool use_io_uring = true);
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  bool uses_io_uring() const { return ring_ != nullptr; }

  // Fills `into` from `offset` on. Throws std::system_error, also where the file is too short.
  void Read(int file, std::uint64_t offset, std::span<std::byte> into);

 private:
  struct Ring;
  std::unique_ptr<Ring> ring_;
};

// Move-only file descriptor of a file in use by this process: locked, so that others can tell.
class DirectFile {
 public:
  // Makes a new file. Throws std::system_error.
  explicit DirectFile(const std::filesystem::path& path);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  int descriptor() const { return descriptor_; }
  // Throws std::system_error.
  void Write(std::uint64_t offset, std::span<const std::byte> data);

 private:
  int descriptor_ = -1;
};

// Removes the file unless a living process holds it or it cannot be opened; true where it did.
// Throws std::filesystem::filesystem_error where it may not.
bool RemoveUnused(const std::filesystem::path& path);

}  // namespace vericache
