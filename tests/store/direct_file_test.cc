#include "store/direct_file.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "unit_support/random_data.h"
#include "unit_support/temporary_folder.h"

namespace vericache {
namespace {

using testing::RandomData;
using testing::TemporaryFolder;

constexpr std::size_t kKiB = 1024;

// Whole blocks of memory with a size.
struct Memory {
  explicit Memory(std::size_t bytes) : data(AllocateBlocks(bytes)), size(bytes) {}

  std::span<std::byte> span() const { return {data.get(), size}; }
  std::span<std::byte> span(std::size_t from, std::size_t bytes) const {
    return span().subspan(from, bytes);
  }

  Blocks data;
  std::size_t size;
};

Memory RandomMemory(std::size_t bytes, RandomData& random) {
  Memory memory(bytes);
  std::ranges::generate(memory.span(), [&] { return static_cast<std::byte>(random.Below(256)); });
  return memory;
}

bool Reads(ReadQueue& queue, const DirectFile& file, std::size_t offset,
           std::span<const std::byte> expected) {
  const Memory memory(expected.size());
  queue.Read(file.descriptor(), offset, memory.span());
  return std::ranges::equal(memory.span(), expected);
}

// What std::system_error `act` throws; none where it throws nothing.
template <typename F>
std::error_code ErrorOf(F act) {
  try {
    act();
  } catch (const std::system_error& error) {
    return error.code();
  }
  return {};
}

TEST(DirectFile, BlocksOfMemoryAreAligned) {
  for (const std::size_t blocks : {1, 2, 3, 100}) {
    const Blocks memory = AllocateBlocks(blocks * kBlock);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % kBlock, 0U);
  }
}

RC_GTEST_PROP(DirectFile, HasWhatWasWrittenLast, (std::uint32_t seed)) {
  RandomData random(seed);
  const TemporaryFolder folder;
  DirectFile file(folder.path() / "file");
  ReadQueue queue;
  const int blocks = 1 + random.Below(8);
  const Memory expected = RandomMemory(Size(blocks) * kBlock, random);
  file.Write(0, expected.span());
  for (int i = random.Below(6); i > 0; --i) {
    const int from = random.Below(blocks);
    const Memory some = RandomMemory(Size(1 + random.Below(blocks - from)) * kBlock, random);
    file.Write(Size(from) * kBlock, some.span());
    std::ranges::copy(some.span(), expected.span(Size(from) * kBlock, some.size).begin());
  }
  const std::size_t from = Size(random.Below(blocks)) * kBlock;
  RC_ASSERT(Reads(queue, file, from, expected.span(from, expected.size - from)));
  RC_ASSERT(Reads(queue, file, 0, expected.span()));
}

TEST(DirectFile, IsANewFileThatOnlyItsUserReads) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  const DirectFile file(path);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(ErrorOf([&] { DirectFile again(path); }), std::errc::file_exists);
  EXPECT_EQ(ErrorOf([&] { DirectFile nowhere(folder.path() / "none" / "file"); }),
            std::errc::no_such_file_or_directory);
}

TEST(DirectFile, IsKeptWhileItIsHeldAndRemovedAfterwards) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "file";
  {
    const DirectFile file(path);
    EXPECT_FALSE(RemoveUnused(path));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_TRUE(RemoveUnused(path));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(RemoveUnused(path));
}

TEST(DirectFile, IsHeldByItsProcessUntilThatDies) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "file";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const DirectFile file(path);
    (void)!write(ready[1], "!", 1);
    sleep(60);
    _exit(0);
  }
  ASSERT_GT(child, 0);
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  EXPECT_FALSE(RemoveUnused(path));
  EXPECT_TRUE(std::filesystem::exists(path));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(RemoveUnused(path));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(DirectFile, IsHeldFromTheStart) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "file";
  std::atomic<bool> stop{false};
  std::thread remover([&] {
    while (!stop) {
      RemoveUnused(path);
    }
  });
  int lost = 0;
  for (int i = 0; i < 2000; ++i) {
    const DirectFile file(path);
    lost += std::filesystem::exists(path) && !RemoveUnused(path) ? 0 : 1;
    std::filesystem::remove(path);
  }
  stop = true;
  remover.join();
  EXPECT_EQ(lost, 0);
}

TEST(DirectFile, WhatCannotBeOpenedIsLeftAlone) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a folder";
  std::filesystem::create_directory(path);
  EXPECT_FALSE(RemoveUnused(path));
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(ReadQueue, ReadsTheSameWithAndWithoutIoUring) {
  ReadQueue ring;
  ReadQueue plain(false);
  EXPECT_FALSE(plain.uses_io_uring());
  if (!ring.uses_io_uring()) {
    GTEST_SKIP() << "this system has no io_uring";
  }
  RandomData random(1);
  const TemporaryFolder folder;
  DirectFile file(folder.path() / "file");
  const Memory all = RandomMemory(9 * kKiB * kKiB, random);
  file.Write(0, all.span());
  // Less than a piece, whole pieces, and more pieces than are under way at once.
  for (const std::size_t size :
       {4 * kKiB, 256 * kKiB, 260 * kKiB, 1024 * kKiB, 4096 * kKiB, 4100 * kKiB, 9000 * kKiB}) {
    for (const std::size_t offset : {0 * kKiB, 4 * kKiB, 100 * kKiB}) {
      SCOPED_TRACE(std::to_string(size) + " from " + std::to_string(offset));
      EXPECT_TRUE(Reads(ring, file, offset, all.span(offset, size)));
      EXPECT_TRUE(Reads(plain, file, offset, all.span(offset, size)));
    }
  }
}

class ReadQueueErrors : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutIoUring, ReadQueueErrors, ::testing::Bool());

TEST_P(ReadQueueErrors, AFileThatIsTooShortIsAnErrorAndTheNextReadWorks) {
  ReadQueue queue(GetParam());
  RandomData random(2);
  const TemporaryFolder folder;
  DirectFile file(folder.path() / "file");
  const Memory all = RandomMemory(300 * kKiB, random);
  file.Write(0, all.span());
  const Memory more(8192 * kKiB);
  for (const std::size_t size : {304 * kKiB, 8192 * kKiB}) {
    EXPECT_TRUE(ErrorOf([&] { queue.Read(file.descriptor(), 0, more.span(0, size)); }));
    EXPECT_TRUE(Reads(queue, file, 0, all.span()));
  }
  EXPECT_TRUE(ErrorOf([&] { queue.Read(file.descriptor(), all.size, more.span(0, kBlock)); }));
  EXPECT_TRUE(Reads(queue, file, 0, all.span()));
}

TEST_P(ReadQueueErrors, AnUnreadableFileIsAnErrorAndTheNextReadWorks) {
  ReadQueue queue(GetParam());
  RandomData random(3);
  const TemporaryFolder folder;
  DirectFile file(folder.path() / "file");
  const Memory all = RandomMemory(64 * kKiB, random);
  file.Write(0, all.span());
  const Memory more(8192 * kKiB);
  EXPECT_EQ(ErrorOf([&] { queue.Read(-1, 0, more.span()); }), std::errc::bad_file_descriptor);
  EXPECT_TRUE(Reads(queue, file, 0, all.span()));
}

// A piece that fails at once must not leave the others under way.
TEST_P(ReadQueueErrors, MemoryThatCannotBeFilledIsAnErrorAndTheNextReadWorks) {
  ReadQueue queue(GetParam());
  RandomData random(4);
  const TemporaryFolder folder;
  DirectFile file(folder.path() / "file");
  const Memory all = RandomMemory(8192 * kKiB, random);
  file.Write(0, all.span());
  for (int i = 0; i < 10; ++i) {
    const Memory memory(all.size);
    ASSERT_EQ(mprotect(memory.data.get(), 64 * kKiB, PROT_NONE), 0);
    EXPECT_EQ(ErrorOf([&] { queue.Read(file.descriptor(), 0, memory.span()); }),
              std::errc::bad_address);
    ASSERT_EQ(mprotect(memory.data.get(), 64 * kKiB, PROT_READ | PROT_WRITE), 0);
    EXPECT_TRUE(Reads(queue, file, 0, all.span()));
  }
}

}  // namespace
}  // namespace vericache
