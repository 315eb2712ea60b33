#include "perfmodel/profiles.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "unit_support/temporary_folder.h"

namespace vericache {
namespace {

TEST(Profiles, KnownOnesAreWhole) {
  for (const char* name : {"rtx-pro-6000", "h100-nvl", "2xh100-nvl", "gh200"}) {
    const DeviceProfile device = FindDevice(name);
    EXPECT_GT(device.memory.count, 90'000'000'000U) << name;
    EXPECT_GT(device.rho(), 5.0) << name;
    EXPECT_LT(device.rho(), 65.0) << name;
    EXPECT_GT(device.flops, 1e14) << name;
  }
  for (const char* name : {"mistral-24b", "qwen-32b", "llama-70b", "qwen-14b", "qwen-8b"}) {
    const ModelShape model = FindModelShape(name);
    EXPECT_NEAR(static_cast<double>(model.weights.count), 2.0 * model.parameters,
                0.01 * model.parameters)
        << name;
  }
  // 100K tokens of Llama's 8 heads of 128 in 80 layers: 33 GB, in 16 bits.
  EXPECT_EQ(FindModelShape("llama-70b").kv_per_token().count, 327'680U);
}

TEST(Profiles, UnknownOnesListTheKnown) {
  try {
    FindDevice("abacus");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("gh200"), std::string::npos);
  }
  try {
    FindModelShape("gpt");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("qwen-8b"), std::string::npos);
  }
}

TEST(Profiles, FileOfADevice) {
  const testing::TemporaryFolder folder;
  const std::string path = (folder.path() / "device.json").string();
  std::ofstream(path) << R"({"name": "mine", "memory_bytes": 1e9, "memory_bandwidth": 3e10,
                             "link_bandwidth": 2e9, "flops": 1e11})";
  const DeviceProfile device = FindDevice(path);
  EXPECT_EQ(device.name, "mine");
  EXPECT_EQ(device.memory.count, 1'000'000'000U);
  EXPECT_EQ(device.rho(), 15.0);
  std::ofstream(path) << R"({"memory_bytes": 1e9})";
  EXPECT_THROW(FindDevice(path), UserError);
  std::ofstream(path) << "not JSON";
  EXPECT_THROW(FindDevice(path), UserError);
}

}  // namespace
}  // namespace vericache
