#include "model/gguf_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include "base/error.h"
#include "gguf.h"

namespace vericache {
namespace {

// One element of GGUF's numeric types as an integer; nullopt for other types.
std::optional<std::int64_t> IntegerAt(gguf_type type, const void* data, std::size_t i) {
  const auto read = [&]<typename T>(T /*type*/) {
    T value;
    std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
    return static_cast<std::int64_t>(value);
  };
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_BOOL:
      return read(std::uint8_t{});
    case GGUF_TYPE_INT8:
      return read(std::int8_t{});
    case GGUF_TYPE_UINT16:
      return read(std::uint16_t{});
    case GGUF_TYPE_INT16:
      return read(std::int16_t{});
    case GGUF_TYPE_UINT32:
      return read(std::uint32_t{});
    case GGUF_TYPE_INT32:
      return read(std::int32_t{});
    case GGUF_TYPE_UINT64:
      return read(std::uint64_t{});
    case GGUF_TYPE_INT64:
      return read(std::int64_t{});
    default:
      return std::nullopt;
  }
}

}  // namespace

void GgufFile::FreeContext::operator()(gguf_context* context) const { gguf_free(context); }

void GgufFile::Fail(const std::string& what) const {
  throw UserError(path_.string() + ": " + what);
}

GgufFile::GgufFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  if (!std::filesystem::exists(status)) {
    Fail(error && error != std::errc::no_such_file_or_directory ? error.message() : "no such file");
  }
  if (!std::filesystem::is_regular_file(status)) {
    Fail("not a file");
  }
  std::ifstream file(path_, std::ios::binary);
  if (!file) {
    Fail("cannot be read");
  }
  std::array<char, 4> magic{};
  if (!file.read(magic.data(), magic.size()) || std::memcmp(magic.data(), "GGUF", 4) != 0) {
    Fail("not a GGUF file");
  }
  context_.reset(gguf_init_from_file(path_.c_str(), {.no_alloc = true, .ctx = nullptr}));
  if (!context_) {
    Fail("the GGUF header is damaged or cut off; get the file again");
  }
  const std::uint64_t size = std::filesystem::file_size(path_);
  const std::uint64_t data = gguf_get_data_offset(context_.get());
  for (std::int64_t i = 0; i < gguf_get_n_tensors(context_.get()); ++i) {
    Tensor tensor{.name = gguf_get_tensor_name(context_.get(), i),
                  .type = gguf_get_tensor_type(context_.get(), i),
                  .shape = {},
                  .offset = data + gguf_get_tensor_offset(context_.get(), i),
                  .size = {gguf_get_tensor_size(context_.get(), i)}};
    const std::int64_t* shape = gguf_get_tensor_ne(context_.get(), i);
    tensor.shape.assign(shape, shape + GGML_MAX_DIMS);
    if (tensor.offset + tensor.size.count > size) {
      Fail("cut off: tensor " + tensor.name + " ends at byte " +
           std::to_string(tensor.offset + tensor.size.count) + ", the file has " +
           std::to_string(size) + "; get the file again");
    }
    tensors_.push_back(std::move(tensor));
  }
}

const GgufFile::Tensor* GgufFile::Find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

std::optional<std::int64_t> GgufFile::Integer(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) {
    return std::nullopt;
  }
  const gguf_type type = gguf_get_kv_type(context_.get(), id);
  if (type == GGUF_TYPE_ARRAY) {
    const gguf_type element = gguf_get_arr_type(context_.get(), id);
    const std::size_t count = gguf_get_arr_n(context_.get(), id);
    if (count == 0 || element == GGUF_TYPE_STRING || element == GGUF_TYPE_ARRAY) {
      Fail("metadata " + key + " is not a number");
    }
    const void* data = gguf_get_arr_data(context_.get(), id);
    const std::optional<std::int64_t> first = IntegerAt(element, data, 0);
    for (std::size_t i = 0; i < count; ++i) {
      if (!first || IntegerAt(element, data, i) != first) {
        Fail("metadata " + key + " differs by layer, which this engine does not do");
      }
    }
    return first;
  }
  const std::optional<std::int64_t> value =
      type == GGUF_TYPE_STRING ? std::nullopt
                               : IntegerAt(type, gguf_get_val_data(context_.get(), id), 0);
  if (!value) {
    Fail("metadata " + key + " is not an integer");
  }
  return value;
}

std::optional<double> GgufFile::Real(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) {
    return std::nullopt;
  }
  switch (gguf_get_kv_type(context_.get(), id)) {
    case GGUF_TYPE_FLOAT32:
      return gguf_get_val_f32(context_.get(), id);
    case GGUF_TYPE_FLOAT64:
      return gguf_get_val_f64(context_.get(), id);
    default:
      return static_cast<double>(*Integer(key));
  }
}

std::optional<std::string> GgufFile::String(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) {
    return std::nullopt;
  }
  if (gguf_get_kv_type(context_.get(), id) != GGUF_TYPE_STRING) {
    Fail("metadata " + key + " is not a string");
  }
  return gguf_get_val_str(context_.get(), id);
}

std::string GgufFile::Fingerprint() const {
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  XXH3_128bits_reset(state.get());
  std::ifstream file(path_, std::ios::binary);
  std::vector<char> block(std::size_t{4} << 20U);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    XXH3_128bits_update(state.get(), block.data(), static_cast<std::size_t>(file.gcount()));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

std::optional<std::int64_t> GgufFile::ArraySize(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0 || gguf_get_kv_type(context_.get(), id) != GGUF_TYPE_ARRAY) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(gguf_get_arr_n(context_.get(), id));
}

}  // namespace vericache
