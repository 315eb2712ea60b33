// What is saved is loaded bit for bit, from both stores; the folder of the one on disk.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "store/direct_file.h"
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

std::unique_ptr<FullStore> MakeStore(bool disk, const fs::path& folder, GroupShape shape) {
  return disk ? MakeDiskStore(folder, shape) : MakeMemoryStore(shape);
}

void GivesBackWhatWasSavedLast(bool disk, GroupShape shape, RandomData& random) {
  const TemporaryFolder folder;
  const std::unique_ptr<FullStore> store = MakeStore(disk, folder.path(), shape);
  std::vector<std::unique_ptr<StoredCache>> caches;
  std::vector<std::vector<Group>> expected(Size(1 + random.Below(3)));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    caches.push_back(store->Create());
  }
  for (int act = random.Below(20); act > 0; --act) {
    const std::size_t i = Size(random.Below(static_cast<int>(expected.size())));
    const int number = random.Below(static_cast<int>(expected[i].size()) + 1);
    const Group group = RandomGroup(shape, random);
    Save(*caches[i], number, group);
    if (Size(number) == expected[i].size()) {
      expected[i].push_back(group);
    } else {
      expected[i][Size(number)] = group;
    }
    const int other = random.Below(static_cast<int>(expected[i].size()));
    RC_ASSERT(Load(*caches[i], other, shape) == expected[i][Size(other)]);
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t number = 0; number < expected[i].size(); ++number) {
      RC_ASSERT(Load(*caches[i], static_cast<int>(number), shape) == expected[i][number]);
    }
  }
}

GroupShape AnyShape(RandomData& random) {
  const int sizes[] = {1, 63, 4096, 4097, 8192, 1 + random.Below(20000)};
  return {.layers = 1 + random.Below(4), .page_bytes = Size(sizes[random.Below(6)])};
}

RC_GTEST_PROP(MemoryStore, GivesBackWhatWasSavedLast, (std::uint32_t seed)) {
  RandomData random(seed);
  GivesBackWhatWasSavedLast(false, AnyShape(random), random);
}

RC_GTEST_PROP(DiskStore, GivesBackWhatWasSavedLast, (std::uint32_t seed)) {
  RandomData random(seed);
  GivesBackWhatWasSavedLast(true, AnyShape(random), random);
}

TEST(DiskStore, GivesBackGroupsOfManyPieces) {
  RandomData random(1);
  const GroupShape shape{.layers = 3, .page_bytes = 2 * 1024 * 1024 + 5};
  const TemporaryFolder folder;
  const auto cache = MakeDiskStore(folder.path(), shape)->Create();
  const Group first = RandomGroup(shape, random);
  const Group second = RandomGroup(shape, random);
  Save(*cache, 0, first);
  Save(*cache, 1, second);
  EXPECT_TRUE(Load(*cache, 0, shape) == first);
  EXPECT_TRUE(Load(*cache, 1, shape) == second);
}

TEST(DiskStore, MakesItsFolder) {
  const TemporaryFolder folder;
  MakeDiskStore(folder.path() / "a" / "b", {.layers = 1, .page_bytes = 1});
  EXPECT_TRUE(fs::is_directory(folder.path() / "a" / "b"));
}

TEST(DiskStore, RemovesTheFilesOfDeadProcesses) {
  const TemporaryFolder folder;
  const fs::path dead = folder.path() / "123-0.fullcache";
  const fs::path living = folder.path() / "124-0.fullcache";
  const fs::path unrelated = folder.path() / "notes.txt";
  std::ofstream(dead) << "left by a process that died";
  std::ofstream(unrelated) << "not a cache";
  const DirectFile held(living);
  MakeDiskStore(folder.path(), {.layers = 1, .page_bytes = 1});
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living));
  EXPECT_TRUE(fs::exists(unrelated));
}

TEST(DiskStore, AFolderThatCannotBeUsedIsAnErrorThatNamesIt) {
  const TemporaryFile file("not a folder");
  for (const fs::path& path : {file.path(), file.path() / "below"}) {
    try {
      MakeDiskStore(path, {.layers = 1, .page_bytes = 1});
      ADD_FAILURE() << "no error for " << path;
    } catch (const UserError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path.string() + ": ")) << error.what();
    }
  }
}

}  // namespace
}  // namespace vericache
