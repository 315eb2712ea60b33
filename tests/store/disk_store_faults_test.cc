// A file for each cache, and what can happen to it on a disk.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "store/full_store.h"
#include "unit_support/page_groups.h"
#include "unit_support/random_data.h"
#include "unit_support/temporary_file.h"
#include "unit_support/temporary_folder.h"

namespace vericache {
namespace {

namespace fs = std::filesystem;
using testing::Group;
using testing::Load;
using testing::RandomData;
using testing::RandomGroup;
using testing::Save;
using testing::TemporaryFile;
using testing::TemporaryFolder;

std::vector<fs::path> FilesIn(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  return files;
}

// The message of the StoreError that `act` throws.
template <typename F>
std::string MessageOf(F act) {
  try {
    act();
  } catch (const StoreError& error) {
    return error.what();
  }
  return "no error";
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A store in a folder of its own with one cache of three groups, which take 12 KiB each.
class DiskStoreTest : public ::testing::Test {
 protected:
  static constexpr GroupShape kShape{.layers = 2, .page_bytes = 5000};
  static constexpr std::size_t kStride = std::size_t{12} * 1024;

  DiskStoreTest() {
    for (int number = 0; number < 3; ++number) {
      groups_.push_back(RandomGroup(kShape, random_));
      Save(*cache_, number, groups_.back());
    }
  }

  Group LoadOne(int number) { return Load(*cache_, number, kShape); }
  std::string LoadError(int number) {
    return MessageOf([&] { LoadOne(number); });
  }

  TemporaryFolder folder_;
  RandomData random_{1};
  std::unique_ptr<FullStore> store_ = MakeDiskStore(folder_.path(), kShape);
  std::unique_ptr<StoredCache> cache_ = store_->Create();
  fs::path file_ = FilesIn(folder_.path()).front();
  std::vector<Group> groups_;
};

TEST_F(DiskStoreTest, EachCacheHasAFileThatGoesWithIt) {
  EXPECT_EQ(file_.extension(), ".fullcache");
  auto other = store_->Create();
  Save(*other, 0, groups_[2]);
  EXPECT_EQ(FilesIn(folder_.path()).size(), 2U);
  cache_.reset();
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_EQ(FilesIn(folder_.path()).size(), 1U);
  store_.reset();
  EXPECT_EQ(Load(*other, 0, kShape), groups_[2]);
  other.reset();
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(DiskStoreTest, AChangedByteIsAnErrorThatNamesTheFile) {
  for (const std::size_t at : {kStride, kStride + 5000, kStride + 9999}) {
    SCOPED_TRACE(at);
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.flush());
    const std::string error = LoadError(1);
    EXPECT_TRUE(Has(error, file_.string()) && Has(error, "checksum")) << error;
    EXPECT_EQ(LoadOne(0), groups_[0]);
    EXPECT_EQ(LoadOne(2), groups_[2]);
    Save(*cache_, 1, groups_[1]);
    EXPECT_EQ(LoadOne(1), groups_[1]);
  }
}

TEST_F(DiskStoreTest, AnotherGroupAndAnEarlierOneAreErrors) {
  const TemporaryFile earlier;
  fs::copy_file(file_, earlier.path(), fs::copy_options::overwrite_existing);
  Save(*cache_, 1, RandomGroup(kShape, random_));
  std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
  std::ifstream(earlier.path(), std::ios::binary) >> std::noskipws >> file.rdbuf();
  ASSERT_TRUE(file.flush());
  EXPECT_TRUE(Has(LoadError(1), "checksum"));
  EXPECT_EQ(LoadOne(0), groups_[0]);

  std::string group(kStride, '\0');
  file.seekg(0);
  ASSERT_TRUE(file.read(group.data(), kStride));
  file.seekp(2 * kStride);
  ASSERT_TRUE((file << group).flush());
  EXPECT_TRUE(Has(LoadError(2), "checksum"));
}

TEST_F(DiskStoreTest, AFileCutShortIsAnError) {
  for (const std::size_t size : {2 * kStride + 4096, 2 * kStride + 100, 2 * kStride}) {
    fs::resize_file(file_, size);
    const std::string error = LoadError(2);
    EXPECT_TRUE(Has(error, file_.string())) << error;
    EXPECT_EQ(LoadOne(1), groups_[1]);
  }
  fs::resize_file(file_, 0);
  EXPECT_TRUE(Has(LoadError(0), file_.string()));
}

TEST_F(DiskStoreTest, ADeletedFileIsAnErrorOfItsCacheOnly) {
  const auto other = store_->Create();
  Save(*other, 0, groups_[1]);
  fs::remove(file_);
  const std::string error = LoadError(0);
  EXPECT_TRUE(Has(error, file_.string()) && Has(error, "deleted")) << error;
  EXPECT_EQ(Load(*other, 0, kShape), groups_[1]);
}

// While it lives, no file grows beyond `bytes`.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int) = signal(SIGXFSZ, SIG_IGN);
  rlimit before_{};
};

TEST_F(DiskStoreTest, AFullDiskIsAnErrorOfTheCacheThatGrowsAndPasses) {
  const auto other = store_->Create();
  const Group more = RandomGroup(kShape, random_);
  for (const std::size_t room : {0, 100, 4096}) {
    std::string error;
    {
      const FullDisk full(3 * kStride + room);
      error = MessageOf([&] { Save(*cache_, 3, more); });
      Save(*other, 0, more);
    }
    EXPECT_TRUE(Has(error, file_.string()) && Has(error, "free some room")) << error;
    EXPECT_EQ(Load(*other, 0, kShape), more);
    EXPECT_EQ(LoadOne(2), groups_[2]);
  }
  Save(*cache_, 3, more);
  EXPECT_EQ(LoadOne(3), more);
}

TEST_F(DiskStoreTest, AFolderThatIsGoneIsAnErrorOfTheNextCache) {
  fs::remove_all(folder_.path());
  const std::string error = MessageOf([&] { store_->Create(); });
  EXPECT_TRUE(Has(error, folder_.path().string())) << error;
}

TEST_F(DiskStoreTest, StoresShareAFolder) {
  const auto second = MakeDiskStore(folder_.path(), kShape);
  const auto cache = second->Create();
  Save(*cache, 0, groups_[1]);
  EXPECT_EQ(Load(*cache, 0, kShape), groups_[1]);
  EXPECT_EQ(LoadOne(0), groups_[0]);
}

}  // namespace
}  // namespace vericache
