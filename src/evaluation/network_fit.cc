#include "evaluation/network_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numbers>
#include <random>

#include "base/check.h"
#include "base/size.h"
#include "ggml-backend.h"
#include "ggml-opt.h"
#include "model/backend.h"

namespace vericache {
namespace {

constexpr float kLearningRate = 2e-3F;  // falls to zero by a half cosine

struct FreeHandle {
  void operator()(ggml_backend_sched* scheduler) const { ggml_backend_sched_free(scheduler); }
  void operator()(ggml_opt_dataset* dataset) const { ggml_opt_dataset_free(dataset); }
  void operator()(ggml_opt_context* optimizer) const { ggml_opt_free(optimizer); }
};
template <typename Handle>
using Owned = std::unique_ptr<Handle, FreeHandle>;

// Numbers of one kind, as training sees them: (number - mean) / deviation.
struct Scale {
  double mean = 0.0;
  double deviation = 1.0;
};

Scale ScaleOf(std::span<const float> numbers, std::size_t first, std::size_t stride) {
  double sum = 0.0;
  double squares = 0.0;
  std::size_t count = 0;
  for (std::size_t i = first; i < numbers.size(); i += stride) {
    sum += numbers[i];
    squares += static_cast<double>(numbers[i]) * numbers[i];
    ++count;
  }
  const double mean = sum / static_cast<double>(count);
  const double variance = squares / static_cast<double>(count) - mean * mean;
  return {.mean = mean, .deviation = variance > 1e-12 ? std::sqrt(variance) : 1.0};
}

struct Progress {
  int epoch = 0;
  int epochs = 1;
};

ggml_opt_optimizer_params Falling(void* progress) {
  const auto& at = *static_cast<const Progress*>(progress);
  ggml_opt_optimizer_params params = ggml_opt_get_default_optimizer_params(nullptr);
  const double done = static_cast<double>(at.epoch) / at.epochs;
  params.adamw.alpha =
      kLearningRate * static_cast<float>(0.5 * (1.0 + std::cos(std::numbers::pi * done)));
  return params;
}

// The network in training, of scaled inputs and outputs.
class Training {
 public:
  Training(int width, int outputs, const FitOptions& options)
      : backend_(options.threads),
        parameters_(Context(16, 0)),
        values_(Context(GGML_DEFAULT_GRAPH_SIZE, 3)) {  // as ggml's own examples
    ggml_backend_t backend = backend_.get();
    scheduler_.reset(ggml_backend_sched_new(&backend, nullptr, 1, GGML_DEFAULT_GRAPH_SIZE,
                                            /*parallel=*/false, /*op_offload=*/false));
    ggml_context* p = parameters_.get();
    inputs_ = ggml_new_tensor_2d(p, GGML_TYPE_F32, width, kFitBatch);
    ggml_set_input(inputs_);
    up_ = Parameter(ggml_new_tensor_2d(p, GGML_TYPE_F32, width, options.hidden));
    up_bias_ = Parameter(ggml_new_tensor_1d(p, GGML_TYPE_F32, options.hidden));
    down_ = Parameter(ggml_new_tensor_2d(p, GGML_TYPE_F32, options.hidden, outputs));
    down_bias_ = Parameter(ggml_new_tensor_1d(p, GGML_TYPE_F32, outputs));
    buffer_.reset(ggml_backend_alloc_ctx_tensors(p, backend));
    Check(buffer_ != nullptr, "memory for a small network");
    ggml_context* v = values_.get();
    ggml_tensor* inner = ggml_silu(v, ggml_add(v, ggml_mul_mat(v, up_, inputs_), up_bias_));
    outputs_ = ggml_add(v, ggml_mul_mat(v, down_, inner), down_bias_);
    ggml_set_output(outputs_);
    Begin(up_, 1.0 / std::sqrt(width));
    Begin(up_bias_, 0.0);
    Begin(down_, 1.0 / std::sqrt(options.hidden));
    Begin(down_bias_, 0.0);
  }

  void Run(ggml_opt_dataset_t dataset, int rows, int epochs) {
    Progress progress{.epoch = 0, .epochs = epochs};
    ggml_opt_params params =
        ggml_opt_default_params(scheduler_.get(), GGML_OPT_LOSS_TYPE_MEAN_SQUARED_ERROR);
    params.ctx_compute = values_.get();
    params.inputs = inputs_;
    params.outputs = outputs_;
    params.get_opt_pars = Falling;
    params.get_opt_pars_ud = &progress;
    const Owned<ggml_opt_context> optimizer(ggml_opt_init(params));
    for (; progress.epoch < epochs; ++progress.epoch) {
      ggml_opt_dataset_shuffle(optimizer.get(), dataset, rows);
      ggml_opt_epoch(optimizer.get(), dataset, nullptr, nullptr, rows, nullptr, nullptr);
    }
  }

  PredictorValues values() const {
    return {.up = Read(up_),
            .up_bias = Read(up_bias_),
            .down = Read(down_),
            .down_bias = Read(down_bias_)};
  }

 private:
  static GgmlContext Context(std::size_t tensors, std::size_t graphs) {
    return GgmlContext(
        ggml_init({.mem_size = tensors * ggml_tensor_overhead() + graphs * ggml_graph_overhead(),
                   .mem_buffer = nullptr,
                   .no_alloc = true}));
  }

  static ggml_tensor* Parameter(ggml_tensor* tensor) {
    ggml_set_param(tensor);
    return tensor;
  }

  // Random numbers of this deviation.
  void Begin(ggml_tensor* tensor, double deviation) {
    std::vector<float> numbers(static_cast<std::size_t>(ggml_nelements(tensor)));
    for (float& number : numbers) {
      number = static_cast<float>(deviation * normal_(random_));
    }
    ggml_backend_tensor_set(tensor, numbers.data(), 0, ggml_nbytes(tensor));
  }

  static std::vector<float> Read(const ggml_tensor* tensor) {
    std::vector<float> numbers(static_cast<std::size_t>(ggml_nelements(tensor)));
    ggml_backend_tensor_get(tensor, numbers.data(), 0, ggml_nbytes(tensor));
    return numbers;
  }

  Backend backend_;
  Owned<ggml_backend_sched> scheduler_;
  GgmlContext parameters_;
  GgmlContext values_;
  GgmlBuffer buffer_;
  ggml_tensor* inputs_ = nullptr;
  ggml_tensor* up_ = nullptr;
  ggml_tensor* up_bias_ = nullptr;
  ggml_tensor* down_ = nullptr;
  ggml_tensor* down_bias_ = nullptr;
  ggml_tensor* outputs_ = nullptr;
  std::mt19937 random_;  // NOLINT(cert-msc51-cpp): the same at every run
  std::normal_distribution<double> normal_;
};

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

double MeanR2(const PredictorValues& network, const Examples& examples) {
  const std::size_t width = Size(examples.width);
  const std::size_t outputs = Size(examples.outputs_of_row);
  std::vector<double> errors(outputs);
  std::vector<double> inner(network.up_bias.size());
  for (std::size_t row = 0; row < Size(examples.rows()); ++row) {
    const float* input = examples.inputs.data() + row * width;
    for (std::size_t i = 0; i < inner.size(); ++i) {
      double sum = network.up_bias[i];
      for (std::size_t c = 0; c < width; ++c) {
        sum += static_cast<double>(network.up[i * width + c]) * input[c];
      }
      inner[i] = Silu(sum);
    }
    for (std::size_t o = 0; o < outputs; ++o) {
      double sum = network.down_bias[o];
      for (std::size_t i = 0; i < inner.size(); ++i) {
        sum += network.down[o * inner.size() + i] * inner[i];
      }
      const double error = sum - examples.outputs[row * outputs + o];
      errors[o] += error * error;
    }
  }
  double r2 = 0.0;
  for (std::size_t o = 0; o < outputs; ++o) {
    const double deviation = ScaleOf(examples.outputs, o, outputs).deviation;
    r2 += 1.0 - errors[o] / (examples.rows() * deviation * deviation);
  }
  return r2 / static_cast<double>(outputs);
}

}  // namespace

Fit FitNetwork(const Examples& train, const Examples& held_out, const FitOptions& options) {
  Check(train.rows() >= kFitBatch && held_out.rows() >= 1 && options.hidden > 0, "examples");
  const int rows = train.rows() / kFitBatch * kFitBatch;
  const std::size_t width = Size(train.width);
  const std::size_t outputs = Size(train.outputs_of_row);
  // Hidden states are around zero; a few channels are far larger, and stay so.
  const double input_scale = 1.0 / ScaleOf(train.inputs, 0, 1).deviation;
  std::vector<Scale> scales;
  scales.reserve(outputs);
  for (std::size_t o = 0; o < outputs; ++o) {
    scales.push_back(ScaleOf(train.outputs, o, outputs));
  }
  const Owned<ggml_opt_dataset> dataset(ggml_opt_dataset_init(
      GGML_TYPE_F32, GGML_TYPE_F32, train.width, train.outputs_of_row, rows, /*ndata_shard=*/1));
  std::transform(train.inputs.begin(),
                 train.inputs.begin() + static_cast<std::ptrdiff_t>(Size(rows) * width),
                 ggml_get_data_f32(ggml_opt_dataset_data(dataset.get())),
                 [=](float x) { return static_cast<float>(input_scale * x); });
  float* labels = ggml_get_data_f32(ggml_opt_dataset_labels(dataset.get()));
  for (std::size_t i = 0; i < Size(rows) * outputs; ++i) {
    const Scale& scale = scales[i % outputs];
    labels[i] = static_cast<float>((train.outputs[i] - scale.mean) / scale.deviation);
  }
  Training training(train.width, train.outputs_of_row, options);
  training.Run(dataset.get(), rows, options.epochs);

  Fit fit{.values = training.values(), .r2 = 0.0};
  for (float& weight : fit.values.up) {
    weight *= static_cast<float>(input_scale);
  }
  for (std::size_t o = 0; o < outputs; ++o) {
    const auto deviation = static_cast<float>(scales[o].deviation);
    for (std::size_t i = 0; i < Size(options.hidden); ++i) {
      fit.values.down[o * Size(options.hidden) + i] *= deviation;
    }
    fit.values.down_bias[o] =
        fit.values.down_bias[o] * deviation + static_cast<float>(scales[o].mean);
  }
  fit.r2 = MeanR2(fit.values, held_out);
  return fit;
}

}  // namespace vericache
