#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "store/full_store.h"

namespace vericache {
namespace {

TEST(StoreName, MemoryHasNoFolder) { EXPECT_FALSE(ParseStoreName("memory").folder); }

TEST(StoreName, DiskHasTheFolderAfterTheFirstColon) {
  EXPECT_EQ(ParseStoreName("disk:/var/cache").folder, "/var/cache");
  EXPECT_EQ(ParseStoreName("disk:relative/folder").folder, "relative/folder");
  EXPECT_EQ(ParseStoreName("disk:a:b c").folder, "a:b c");
  EXPECT_EQ(ParseStoreName("disk:disk:").folder, "disk:");
}

TEST(StoreName, AnythingElseIsAnErrorThatListsTheStores) {
  for (const std::string text : {"", "disk", "disk:", "disk/tmp", "Disk:/tmp", " disk:/tmp",
                                 "Memory", "memory ", "memory:", "/tmp", "ssd"}) {
    SCOPED_TRACE(text);
    try {
      ParseStoreName(text);
      ADD_FAILURE() << "no error";
    } catch (const UserError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("'" + text + "'"), std::string::npos) << message;
      EXPECT_NE(message.find("memory and disk:PATH"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace vericache
