#include "model/score_predictor.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/check.h"
#include "base/error.h"
#include "base/size.h"
#include "gguf.h"
#include "model/gguf_file.h"

namespace vericache {
namespace {

std::string TensorName(std::size_t layer, const char* part) {
  return "layers." + std::to_string(layer) + "." + part;
}

void AddTensor(gguf_context* gguf, ggml_context* context, const std::string& name,
               const std::vector<float>& values, std::int64_t columns, std::int64_t rows) {
  ggml_tensor* tensor = rows == 0 ? ggml_new_tensor_1d(context, GGML_TYPE_F32, columns)
                                  : ggml_new_tensor_2d(context, GGML_TYPE_F32, columns, rows);
  Check(static_cast<std::size_t>(ggml_nelements(tensor)) == values.size(),
        "all layers have one shape");
  ggml_set_name(tensor, name.c_str());
  std::ranges::copy(values, static_cast<float*>(tensor->data));
  gguf_add_tensor(gguf, tensor);
}

}  // namespace

std::string PredictorGguf(const std::string& model, std::span<const PredictorValues> layers) {
  const auto hidden = static_cast<std::int64_t>(layers[0].up_bias.size());
  const auto heads = static_cast<std::int64_t>(layers[0].down_bias.size());
  const auto width = static_cast<std::int64_t>(layers[0].up.size()) / hidden;
  const auto floats = static_cast<std::size_t>(hidden * (width + 1) + heads * (hidden + 1));
  constexpr std::size_t kPadding = 64;
  const GgmlContext context(
      ggml_init({.mem_size = layers.size() *
                             (floats * sizeof(float) + 4 * (ggml_tensor_overhead() + kPadding)),
                 .mem_buffer = nullptr,
                 .no_alloc = false}));
  const GgufContext gguf(gguf_init_empty());
  gguf_set_val_str(gguf.get(), "general.architecture", "kvzap");
  gguf_set_val_str(gguf.get(), "kvzap.model", model.c_str());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const PredictorValues& layer = layers[i];
    const auto add = [&](const char* part, const std::vector<float>& values, std::int64_t columns,
                         std::int64_t rows) {
      AddTensor(gguf.get(), context.get(), TensorName(i, part), values, columns, rows);
    };
    add("up.weight", layer.up, width, hidden);
    add("up.bias", layer.up_bias, hidden, 0);
    add("down.weight", layer.down, hidden, heads);
    add("down.bias", layer.down_bias, heads, 0);
  }
  char* bytes = nullptr;
  std::size_t size = 0;
  std::FILE* file = open_memstream(&bytes, &size);
  Check(file != nullptr, "memory for a file");
  const bool written = gguf_write_to_file_ptr(gguf.get(), file, /*only_meta=*/false);
  Check(std::fclose(file) == 0 && written, "memory for a file");
  std::string contents(bytes, size);
  std::free(bytes);  // NOLINT(cppcoreguidelines-no-malloc): open_memstream's
  return contents;
}

std::string PredictorFileOf(const std::string& model_path) { return model_path + ".kvzap.gguf"; }

ScorePredictor::ScorePredictor(const std::string& path, const ModelParams& params) : path_(path) {
  if (!std::filesystem::exists(path)) {
    throw UserError(
        path + ": there is no such file; vericache train kvzap -m MODEL --text FILES makes it");
  }
  const GgufFile whole(path);  // all of it is there
  ggml_context* weights = nullptr;
  const GgufContext gguf(gguf_init_from_file(path.c_str(), {.no_alloc = false, .ctx = &weights}));
  weights_.reset(weights);
  const auto refuse = [&path](const std::string& why) {
    throw UserError(path + ": is no network for this model's KVzap: " + why);
  };
  if (!gguf) {
    refuse("it cannot be read");
  }
  for (std::size_t i = 0; i < Size(params.layers); ++i) {
    std::int64_t hidden = -1;  // as the layer's first tensor says
    const auto find = [&](const char* part, std::int64_t columns, std::int64_t rows) {
      const std::string name = TensorName(i, part);
      ggml_tensor* tensor = ggml_get_tensor(weights, name.c_str());
      if (tensor == nullptr) {
        refuse("it has no " + name);
      }
      hidden = hidden < 0 ? tensor->ne[1] : hidden;
      if (tensor->type != GGML_TYPE_F32 || tensor->ne[0] != (columns < 0 ? hidden : columns) ||
          tensor->ne[1] != (rows < 0 ? hidden : rows) || tensor->ne[2] != 1 || tensor->ne[3] != 1 ||
          hidden < 1) {
        refuse(name + " has another shape");
      }
      return tensor;
    };
    layers_.push_back({.up = find("up.weight", params.embedding, -1),
                       .up_bias = find("up.bias", -1, 1),
                       .down = find("down.weight", -1, params.kv_heads),
                       .down_bias = find("down.bias", params.kv_heads, 1)});
  }
  if (ggml_get_tensor(weights, TensorName(layers_.size(), "up.weight").c_str()) != nullptr) {
    refuse("it has more than " + std::to_string(params.layers) + " layers");
  }
}

ggml_tensor* ScorePredictor::Scores(ggml_context* context, int layer, ggml_tensor* hidden) const {
  const Layer& own = layers_.at(Size(layer));
  ggml_tensor* inner =
      ggml_silu(context, ggml_add(context, ggml_mul_mat(context, own.up, hidden), own.up_bias));
  return ggml_add(context, ggml_mul_mat(context, own.down, inner), own.down_bias);
}

}  // namespace vericache
