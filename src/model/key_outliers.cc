#include "model/key_outliers.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ggml-backend.h"

namespace vericache {

std::vector<bool> LayersWithKeyOutliers(const Model& model) {
  std::vector<bool> layers;
  for (const LayerWeights& layer : model.weights().layers()) {
    const ggml_tensor* bias = layer.key.bias;
    std::vector<float> numbers(bias == nullptr ? 0
                                               : static_cast<std::size_t>(ggml_nelements(bias)));
    if (bias != nullptr) {
      Check(bias->type == GGML_TYPE_F32, "biases are float32 in GGUF files");
      ggml_backend_tensor_get(bias, numbers.data(), 0, numbers.size() * sizeof(float));
    }
    layers.push_back(
        std::ranges::any_of(numbers, [](float number) { return std::abs(number) > kOutlierBias; }));
  }
  return layers;
}

}  // namespace vericache
