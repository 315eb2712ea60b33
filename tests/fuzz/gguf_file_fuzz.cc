// GGUF headers: a file is read, or refused with a UserError, whatever is in it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "gguf.h"
#include "model/gguf_file.h"
#include "model/params.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace vericache {
namespace {

// A file in memory that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(const std::uint8_t* data, std::size_t size)
      : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) {
      std::abort();
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

using Random = std::minstd_rand;

std::size_t Below(Random& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}

// Sets a key to something of any type.
void SetAny(gguf_context* gguf, const char* key, Random& random) {
  static const std::int64_t numbers[] = {0, 1, 2, 3, 16, 64, -1, 1 << 28, INT64_MAX, INT64_MIN};
  const std::int64_t number = numbers[Below(random, std::size(numbers))];
  const std::vector<std::int64_t> list(Below(random, 4), number);
  std::vector<const char*> texts(Below(random, 4), "text");
  switch (Below(random, 8)) {
    case 0:
      return gguf_set_val_u32(gguf, key, static_cast<std::uint32_t>(number));
    case 1:
      return gguf_set_val_i64(gguf, key, number);
    case 2:
      return gguf_set_val_bool(gguf, key, number != 0);
    case 3:
      return gguf_set_val_f32(gguf, key, static_cast<float>(number) / 3.0F);
    case 4:
      return gguf_set_val_f64(gguf, key, std::numeric_limits<double>::infinity());
    case 5:
      return gguf_set_val_str(gguf, key, number > 2 ? "none" : "");
    case 6:
      return gguf_set_arr_str(gguf, key, texts.data(), texts.size());
    default:
      return gguf_set_arr_data(gguf, key, number > 2 ? GGUF_TYPE_INT64 : GGUF_TYPE_FLOAT64,
                               list.data(), list.size());
  }
}

// The header of a small model, of which some entries are something else, and its one tensor.
std::vector<std::uint8_t> WholeFile(Random& random) {
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf(gguf_init_empty(), gguf_free);
  const char* architectures[] = {"llama", "qwen2", "qwen3", "other"};
  const std::string architecture = architectures[Below(random, 4) * Below(random, 2)];
  gguf_set_val_str(gguf.get(), "general.architecture", architecture.c_str());
  const std::size_t strange = Below(random, 12);
  for (const char* name :
       {"block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
        "feed_forward_length", "context_length", "attention.key_length", "attention.value_length",
        "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.freq_base",
        "attention.layer_norm_rms_epsilon"}) {
    const std::string key = architecture + "." + name;
    if (Below(random, 12) < strange) {
      SetAny(gguf.get(), key.c_str(), random);
    } else if (key.find("rope") == std::string::npos && key.find("rms") == std::string::npos) {
      const bool per_head = key.ends_with("key_length") || key.ends_with("value_length");
      gguf_set_val_u32(gguf.get(), key.c_str(),
                       key.ends_with("embedding_length") ? 64
                       : per_head                        ? 32
                                                         : 2);
    }
  }
  SetAny(gguf.get(), "tokenizer.ggml.tokens", random);
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> ggml(
      ggml_init({.mem_size = 1U << 16U, .mem_buffer = nullptr, .no_alloc = true}), ggml_free);
  ggml_tensor* tensor = ggml_new_tensor_2d(ggml.get(), GGML_TYPE_F16, 64, 2);
  ggml_set_name(tensor, "token_embd.weight");
  gguf_add_tensor(gguf.get(), tensor);
  std::vector<std::uint8_t> bytes(gguf_get_meta_size(gguf.get()));
  gguf_get_meta_data(gguf.get(), bytes.data());
  bytes.resize(bytes.size() + ggml_nbytes(tensor));
  return bytes;
}

void Read(const std::string& path) {
  const GgufFile file(path);
  for (const char* key : {"general.architecture", "llama.block_count", "tokenizer.ggml.tokens"}) {
    file.ArraySize(key);
  }
  ReadParams(file);
}

}  // namespace
}  // namespace vericache

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const vericache::MemoryFile file(data, size);
  try {
    vericache::Read(file.path());
  } catch (const vericache::UserError&) {
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  vericache::Random random(seed);
  if (size < 8 || vericache::Below(random, 4) == 0) {
    const std::vector<std::uint8_t> whole = vericache::WholeFile(random);
    size = std::min(whole.size(), max_size);
    std::copy_n(whole.begin(), size, data);
    if (vericache::Below(random, 2) == 0) {
      return size;
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
