#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "ggml.h"

struct gguf_context;

namespace vericache {

// The metadata and the table of tensors of a GGUF file. The whole file was seen to be there: every
// tensor's bytes lie inside it.
class GgufFile {
 public:
  struct Tensor {
    std::string name;
    ggml_type type;
    std::vector<std::int64_t> shape;  // ggml's order: the innermost dimension first
    std::uint64_t offset;             // of its bytes, from the begin of the file
    Bytes size;
  };

  // Throws UserError where the file is missing, not a GGUF, damaged or cut off.
  explicit GgufFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // nullptr where there is no such tensor.
  const Tensor* Find(const std::string& name) const;

  // Metadata by key; nullopt where the key is missing. Numbers of any integer type are taken; an
  // array whose elements are all equal counts as that number. Throws UserError where the type does
  // not fit.
  std::optional<std::int64_t> Integer(const std::string& key) const;
  std::optional<double> Real(const std::string& key) const;
  std::optional<std::string> String(const std::string& key) const;
  // The number of elements of an array.
  std::optional<std::int64_t> ArraySize(const std::string& key) const;

  // XXH3-128 over the whole file, as hexadecimal digits: weights and vocabulary. Reads it again.
  std::string Fingerprint() const;

 private:
  struct FreeContext {
    void operator()(gguf_context* context) const;
  };

  [[noreturn]] void Fail(const std::string& what) const;

  std::filesystem::path path_;
  std::unique_ptr<gguf_context, FreeContext> context_;
  std::vector<Tensor> tensors_;
};

}  // namespace vericache
