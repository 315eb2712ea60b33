#include "store/direct_file.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <system_error>
#include <vector>

namespace vericache {
namespace {

// Reads are cut into pieces of this size, kDepth of them under way at once.
constexpr std::size_t kPiece = std::size_t{256} * 1024;
constexpr unsigned kDepth = 16;

[[noreturn]] void Fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

void FreeBlocks::operator()(std::byte* data) const { std::free(data); }

Blocks AllocateBlocks(std::size_t bytes) {
  void* data = std::aligned_alloc(kBlock, bytes);
  if (data == nullptr) {
    throw std::bad_alloc();
  }
  return Blocks(static_cast<std::byte*>(data));
}

struct ReadQueue::Ring {
  io_uring ring{};
  ~Ring() { io_uring_queue_exit(&ring); }
};

ReadQueue::ReadQueue(bool use_io_uring) {
  if (!use_io_uring) {
    return;
  }
  io_uring ring{};
  // Refused by kernels without it and by many sandboxes: then plain reads serve.
  if (io_uring_queue_init(kDepth, &ring, 0) == 0) {
    ring_ = std::make_unique<Ring>();
    ring_->ring = ring;
  }
}

ReadQueue::~ReadQueue() = default;

namespace {

void ReadPlainly(int file, std::uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = pread(file, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      Fail(got < 0 ? errno : EIO, got < 0 ? "read" : "read: the file is too short");
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace

void ReadQueue::Read(int file, std::uint64_t offset, std::span<std::byte> into) {
  if (!ring_) {
    ReadPlainly(file, offset, into);
    return;
  }
  io_uring& ring = ring_->ring;
  const auto piece = [&into](std::size_t at) {
    return into.subspan(at, std::min(kPiece, into.size() - at));
  };
  std::size_t asked = 0;
  std::size_t under_way = 0;
  int error = 0;
  std::vector<std::size_t> cut_short;
  // After an error nothing more is asked for, but what is under way still writes into `into`.
  while ((asked < into.size() && error == 0) || under_way > 0) {
    while (asked < into.size() && error == 0 && under_way < kDepth) {
      const std::span<std::byte> part = piece(asked);
      io_uring_sqe* entry = io_uring_get_sqe(&ring);
      io_uring_prep_read(entry, file, part.data(), static_cast<unsigned>(part.size()),
                         offset + asked);
      io_uring_sqe_set_data64(entry, asked);
      asked += part.size();
      ++under_way;
    }
    const int submitted = io_uring_submit_and_wait(&ring, 1);
    if (submitted < 0 && submitted != -EINTR) {
      error = -submitted;
    }
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring, &done) == 0) {
      const auto at = static_cast<std::size_t>(io_uring_cqe_get_data64(done));
      if (done->res < 0) {
        error = -done->res;
      } else if (static_cast<std::size_t>(done->res) != piece(at).size()) {
        cut_short.push_back(at);
      }
      io_uring_cqe_seen(&ring, done);
      --under_way;
    }
  }
  if (error != 0) {
    Fail(error, "read");
  }
  for (const std::size_t at : cut_short) {
    ReadPlainly(file, offset + at, piece(at));
  }
}

namespace {

int OpenNew(const std::filesystem::path& path) {
  const int flags = O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC;
  int file = open(path.c_str(), flags | O_DIRECT, 0600);
  if (file < 0 && errno == EINVAL) {
    // Some file systems, such as tmpfs of older kernels, cannot go around the page cache.
    std::filesystem::remove(path);
    file = open(path.c_str(), flags, 0600);
  }
  if (file < 0) {
    Fail(errno, path.c_str());
  }
  return file;
}

// True where `path` is the open file, and not another one of that name.
bool IsAt(const std::filesystem::path& path, int file) {
  struct stat named{};
  struct stat opened{};
  return stat(path.c_str(), &named) == 0 && fstat(file, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

}  // namespace

DirectFile::DirectFile(const std::filesystem::path& path) {
  while (true) {
    descriptor_ = OpenNew(path);
    // A RemoveUnused elsewhere may have come between: then it holds the lock, for a moment, and
    // the file is gone.
    while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
    if (IsAt(path, descriptor_)) {
      return;
    }
    close(descriptor_);
  }
}

DirectFile::~DirectFile() { close(descriptor_); }

void DirectFile::Write(std::uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t put = pwrite(descriptor_, data.data(), data.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      Fail(put < 0 ? errno : EIO, "write");
    }
    data = data.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

bool RemoveUnused(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  // The lock is held until the file is gone, so that nobody takes it for theirs meanwhile.
  std::error_code error;
  const bool removed = flock(file, LOCK_EX | LOCK_NB) == 0 && IsAt(path, file) &&
                       std::filesystem::remove(path, error);
  close(file);
  if (error) {
    throw std::filesystem::filesystem_error("remove", path, error);
  }
  return removed;
}

}  // namespace vericache
