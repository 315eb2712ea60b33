#include "store/prefix_store.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "base/error.h"
#include "unit_support/temporary_folder.h"

namespace vericache {
namespace {

constexpr std::size_t kChunkBytes = 1200;

std::vector<TokenId> Tokens(int count, int seed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(TokenId{(i * 31 + seed) % 1000});
  }
  return tokens;
}

std::vector<std::byte> Chunk(int seed) {
  std::vector<std::byte> bytes(kChunkBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + static_cast<std::size_t>(seed)) & 0xFFU);
  }
  return bytes;
}

std::vector<std::byte> Loaded(PrefixStore& store, const PrefixKey& key) { return *store.Load(key); }

// Keys agree exactly as far as the tokens do.
RC_GTEST_PROP(PrefixKeys, AgreeAsFarAsTheTokensDo, ()) {
  const int length = *rc::gen::inRange(0, 2000);
  const std::vector<TokenId> tokens = Tokens(length, 1);
  const PrefixKey root = PrefixRoot("model");
  const std::vector<PrefixKey> keys = PrefixKeys(tokens, root);
  RC_ASSERT(keys.size() == tokens.size() / kPrefixTokens);
  RC_ASSERT(std::set(keys.begin(), keys.end()).size() == keys.size());
  if (length == 0) {
    return;
  }
  std::vector<TokenId> other = tokens;
  const auto place = *rc::gen::inRange<std::size_t>(0, tokens.size());
  other[place] = TokenId{5000};
  const std::vector<PrefixKey> changed = PrefixKeys(other, root);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    RC_ASSERT((keys[i] == changed[i]) == ((i + 1) * kPrefixTokens <= place));
  }
  const std::vector<PrefixKey> elsewhere = PrefixKeys(tokens, PrefixRoot("another model"));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    RC_ASSERT(keys[i] != elsewhere[i]);
  }
}

TEST(PrefixStoreInMemory, DropsWhatWasNotUsedForLongest) {
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(256 * 4, 1), PrefixRoot("m"));
  PrefixStore store({.memory = {3 * kChunkBytes}});
  for (int i = 0; i < 3; ++i) {
    store.Save(keys[static_cast<std::size_t>(i)], Chunk(i));
  }
  EXPECT_EQ(store.Lookup(keys), 3);
  EXPECT_EQ(Loaded(store, keys[0]), Chunk(0));
  store.Save(keys[3], Chunk(3));  // in place of 1, since 0 was used after it
  EXPECT_EQ(store.Lookup(keys), 1);
  EXPECT_EQ(Loaded(store, keys[0]), Chunk(0));
  EXPECT_EQ(Loaded(store, keys[2]), Chunk(2));
  EXPECT_EQ(Loaded(store, keys[3]), Chunk(3));
  EXPECT_THROW(Loaded(store, keys[1]), StoreError);
}

TEST(PrefixStoreInMemory, WithoutRoomKeepsNothing) {
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(256, 1), PrefixRoot("m"));
  PrefixStore store({.memory = {kChunkBytes - 1}});
  store.Save(keys[0], Chunk(0));
  EXPECT_EQ(store.Lookup(keys), 0);
}

TEST(PrefixStoreOnDisk, OutlivesTheStore) {
  const testing::TemporaryFolder folder;
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(512, 1), PrefixRoot("m"));
  const PrefixStoreOptions options{.folder = folder.path() / "p"};
  PrefixStore(options).Save(keys[0], Chunk(0));
  PrefixStore store(options);
  EXPECT_EQ(store.Lookup(keys), 1);
  EXPECT_EQ(Loaded(store, keys[0]), Chunk(0));
}

// Whichever byte is wrong or missing: it is not used, and forgotten.
TEST(PrefixStoreOnDisk, RefusesEveryDamage) {
  const testing::TemporaryFolder folder;
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(256, 1), PrefixRoot("m"));
  PrefixStore store({.folder = folder.path()});
  const std::filesystem::path path = folder.path() / (keys[0].Text() + ".prefix");
  store.Save(keys[0], Chunk(0));
  const auto size = std::filesystem::file_size(path);
  for (std::uintmax_t at = 0; at < size; at += at < 120 ? 1 : 37) {
    store.Save(keys[0], Chunk(0));
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const char byte = static_cast<char>(file.get());
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ 0x10));
    }
    EXPECT_THROW(Loaded(store, keys[0]), StoreError) << "byte " << at;
    EXPECT_EQ(store.Lookup(keys), 0);
    store.Save(keys[0], Chunk(0));
    std::filesystem::resize_file(path, at);
    EXPECT_THROW(Loaded(store, keys[0]), StoreError) << "cut to " << at;
    EXPECT_EQ(store.Lookup(keys), 0);
  }
}

// A crash leaves files that are not whole under other names.
TEST(PrefixStoreOnDisk, UnfinishedFilesAreNotFound) {
  const testing::TemporaryFolder folder;
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(256, 1), PrefixRoot("m"));
  std::ofstream(folder.path() / (keys[0].Text() + ".prefix.1-0.part")) << "half";
  PrefixStore store({.folder = folder.path()});
  EXPECT_EQ(store.Lookup(keys), 0);
}

}  // namespace
}  // namespace vericache
