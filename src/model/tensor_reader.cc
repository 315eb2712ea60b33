#include "model/tensor_reader.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ggml-backend.h"

namespace vericache {
namespace {

// Bytes of a file that are read at once.
constexpr std::size_t kBlock = std::size_t{8} << 20U;

// Rows of numbers that lie one after the other, of one length.
struct Rows {
  std::int64_t length;
  std::int64_t count;
};

void Convert(ggml_type from_type, const std::byte* from, ggml_type to_type, std::byte* to,
             Rows rows, std::vector<float>& floats) {
  floats.resize(static_cast<std::size_t>(rows.length * rows.count));
  if (from_type == GGML_TYPE_F32) {
    const auto* numbers = reinterpret_cast<const float*>(from);
    std::copy_n(numbers, floats.size(), floats.begin());
  } else {
    ggml_get_type_traits(from_type)->to_float(from, floats.data(), rows.length * rows.count);
  }
  ggml_quantize_chunk(to_type, floats.data(), to, 0, rows.count, rows.length, nullptr);
}

// All rows are shared out among the threads, some at a time.
void ConvertAll(ggml_type from_type, const std::vector<std::byte>& from, ggml_type to_type,
                std::byte* out, Rows rows, int threads) {
  constexpr std::int64_t kAtOnce = 64;
  const std::size_t from_row = ggml_row_size(from_type, rows.length);
  const std::size_t to_row = ggml_row_size(to_type, rows.length);
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    std::vector<float> floats;
    for (std::int64_t row; (row = next.fetch_add(kAtOnce)) < rows.count;) {
      const auto at = static_cast<std::size_t>(row);
      Convert(from_type, from.data() + at * from_row, to_type, out + at * to_row,
              {rows.length, std::min(kAtOnce, rows.count - row)}, floats);
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back(work);
  }
  work();
}

}  // namespace

void ReadTensors(const GgufFile& file, std::span<ggml_tensor* const> tensors, int threads) {
  std::ifstream stream(file.path(), std::ios::binary);
  const auto read = [&](const GgufFile::Tensor& tensor, void* to, std::size_t count) {
    if (!stream.read(static_cast<char*>(to), static_cast<std::streamsize>(count))) {
      throw UserError(file.path().string() + ": reading tensor " + tensor.name +
                      " failed; the file is damaged or too short");
    }
  };
  std::vector<std::byte> whole;
  std::vector<std::byte> converted;
  for (ggml_tensor* to : tensors) {
    const GgufFile::Tensor& tensor = *file.Find(ggml_get_name(to));
    const auto size = static_cast<std::size_t>(tensor.size.count);
    const bool in_place = ggml_backend_buffer_is_host(to->buffer);
    stream.seekg(static_cast<std::streamoff>(tensor.offset));
    if (in_place && to->type == tensor.type) {
      for (std::size_t at = 0; at < size; at += kBlock) {
        read(tensor, static_cast<std::byte*>(to->data) + at, std::min(kBlock, size - at));
      }
      continue;
    }
    whole.resize(size);
    read(tensor, whole.data(), size);
    if (to->type != tensor.type) {
      converted.resize(ggml_nbytes(to));
      ConvertAll(tensor.type, whole, to->type, converted.data(), {to->ne[0], ggml_nrows(to)},
                 threads);
      whole.swap(converted);
    }
    ggml_backend_tensor_set(to, whole.data(), 0, whole.size());  // packs where the buffer does
  }
}

}  // namespace vericache
