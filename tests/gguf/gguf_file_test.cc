#include "model/gguf_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "gguf.h"
#include "unit_support/temporary_file.h"

namespace vericache {
namespace {

using testing::TemporaryFile;

// A small file with one entry of every kind and two tensors.
std::string SmallFile() {
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf(gguf_init_empty(), gguf_free);
  gguf_set_val_u32(gguf.get(), "unsigned", 7);
  gguf_set_val_i64(gguf.get(), "signed", -5);
  gguf_set_val_bool(gguf.get(), "bool", true);
  gguf_set_val_f32(gguf.get(), "float", 0.5F);
  gguf_set_val_f64(gguf.get(), "double", 0.25);
  gguf_set_val_str(gguf.get(), "string", "llama");
  const std::int32_t same[] = {3, 3, 3};
  gguf_set_arr_data(gguf.get(), "same", GGUF_TYPE_INT32, same, 3);
  const std::int32_t different[] = {3, 4, 3};
  gguf_set_arr_data(gguf.get(), "different", GGUF_TYPE_INT32, different, 3);
  const float floats[] = {1.0F};
  gguf_set_arr_data(gguf.get(), "floats", GGUF_TYPE_FLOAT32, floats, 1);
  const char* strings[] = {"a", "b"};
  gguf_set_arr_str(gguf.get(), "strings", strings, 2);
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> ggml(
      ggml_init({.mem_size = 1U << 16U, .mem_buffer = nullptr, .no_alloc = false}), ggml_free);
  ggml_tensor* one = ggml_new_tensor_2d(ggml.get(), GGML_TYPE_F32, 4, 3);
  ggml_set_name(one, "one");
  ggml_tensor* two = ggml_new_tensor_1d(ggml.get(), GGML_TYPE_F16, 32);
  ggml_set_name(two, "two");
  for (ggml_tensor* tensor : {one, two}) {
    auto* bytes = static_cast<std::uint8_t*>(tensor->data);
    std::iota(bytes, bytes + ggml_nbytes(tensor), std::uint8_t{0});
    gguf_add_tensor(gguf.get(), tensor);
  }
  const TemporaryFile file;
  gguf_write_to_file(gguf.get(), file.path().c_str(), /*only_meta=*/false);
  std::ifstream stream(file.path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string ErrorOf(const std::filesystem::path& path) {
  try {
    const GgufFile file(path);
  } catch (const UserError& error) {
    const std::string what = error.what();
    return what.starts_with(path.string()) ? what.substr(path.string().size()) : "no path: " + what;
  }
  return "no error";
}

TEST(GgufFile, ReadsTheTableOfTensors) {
  const std::string bytes = SmallFile();
  const TemporaryFile temporary(bytes);
  const GgufFile file(temporary.path());
  ASSERT_EQ(file.tensors().size(), 2U);
  const GgufFile::Tensor* one = file.Find("one");
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->type, GGML_TYPE_F32);
  EXPECT_EQ(one->shape, (std::vector<std::int64_t>{4, 3, 1, 1}));
  EXPECT_EQ(one->size, Bytes{48});
  const GgufFile::Tensor* two = file.Find("two");
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->type, GGML_TYPE_F16);
  EXPECT_EQ(two->size, Bytes{64});
  // The offsets are those of the bytes 0, 1, 2, ... that were written.
  for (const GgufFile::Tensor* tensor : {one, two}) {
    for (std::uint64_t i = 0; i < tensor->size.count; ++i) {
      ASSERT_EQ(bytes.at(tensor->offset + i), static_cast<char>(i));
    }
  }
  EXPECT_EQ(file.Find("three"), nullptr);
}

TEST(GgufFile, ReadsMetadata) {
  const TemporaryFile temporary(SmallFile());
  const GgufFile file(temporary.path());
  EXPECT_EQ(file.Integer("unsigned"), 7);
  EXPECT_EQ(file.Integer("signed"), -5);
  EXPECT_EQ(file.Integer("bool"), 1);
  EXPECT_EQ(file.Integer("same"), 3);
  EXPECT_EQ(file.Real("float"), 0.5);
  EXPECT_EQ(file.Real("double"), 0.25);
  EXPECT_EQ(file.Real("unsigned"), 7.0);
  EXPECT_EQ(file.String("string"), "llama");
  EXPECT_EQ(file.ArraySize("strings"), 2);
  EXPECT_EQ(file.ArraySize("different"), 3);
}

TEST(GgufFile, MissingMetadataIsNoError) {
  const TemporaryFile temporary(SmallFile());
  const GgufFile file(temporary.path());
  EXPECT_EQ(file.Integer("missing"), std::nullopt);
  EXPECT_EQ(file.Real("missing"), std::nullopt);
  EXPECT_EQ(file.String("missing"), std::nullopt);
  EXPECT_EQ(file.ArraySize("missing"), std::nullopt);
  EXPECT_EQ(file.ArraySize("string"), std::nullopt);
}

TEST(GgufFile, RefusesMetadataOfTheWrongTypeNamingIt) {
  const TemporaryFile temporary(SmallFile());
  const GgufFile file(temporary.path());
  for (const std::string key : {"string", "float", "different", "floats", "strings"}) {
    try {
      file.Integer(key);
      ADD_FAILURE() << key << " was taken for an integer";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(file.Real("string"), UserError);
  EXPECT_THROW(file.Real("strings"), UserError);
  EXPECT_THROW(file.String("unsigned"), UserError);
  EXPECT_THROW(file.String("strings"), UserError);
}

TEST(GgufFile, RefusesWhatIsNoFile) {
  EXPECT_EQ(ErrorOf("no-such-folder/no-such-file.gguf"), ": no such file");
  EXPECT_EQ(ErrorOf(::testing::TempDir()), ": not a file");
}

TEST(GgufFile, RefusesWhatIsNoGguf) {
  for (const std::string bytes : {"", "GGU", "ggml", "PK\x03\x04 some other file"}) {
    const TemporaryFile file(bytes);
    EXPECT_EQ(ErrorOf(file.path()), ": not a GGUF file");
  }
}

TEST(GgufFile, RefusesAFileCutOffAnywhere) {
  const std::string bytes = SmallFile();
  // The last tensor's data are followed by padding that nobody needs.
  const std::size_t data_end = [&] {
    const TemporaryFile temporary(bytes);
    const GgufFile file(temporary.path());
    const GgufFile::Tensor* last = file.Find("two");
    return last->offset + last->size.count;
  }();
  for (std::size_t size = 0; size < data_end; ++size) {
    const TemporaryFile file(bytes.substr(0, size));
    const std::string what = ErrorOf(file.path());
    ASSERT_TRUE(size < 4 ? what == ": not a GGUF file" : what.find("cut off") != std::string::npos)
        << "at " << size << " of " << data_end << what;
  }
  const TemporaryFile file(bytes.substr(0, data_end));
  EXPECT_EQ(ErrorOf(file.path()), "no error");
}

TEST(GgufFile, NamesTheTensorThatIsCutOff) {
  const std::string bytes = SmallFile();
  const TemporaryFile whole(bytes);
  const std::uint64_t offset = GgufFile(whole.path()).Find("two")->offset;
  const TemporaryFile file(bytes.substr(0, offset + 10));
  const std::string what = ErrorOf(file.path());
  EXPECT_NE(what.find("two"), std::string::npos) << what;
}

}  // namespace
}  // namespace vericache
