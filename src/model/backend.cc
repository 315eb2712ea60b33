#include "model/backend.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace vericache {

Backend::Backend(int threads) : threads_(threads), backend_(ggml_backend_cpu_init()) {
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  pool_.reset(ggml_threadpool_new(&params));
  Check(backend_ != nullptr && pool_ != nullptr, "ggml's CPU backend starts");
  ggml_backend_cpu_set_n_threads(backend_.get(), threads);
  ggml_backend_cpu_set_threadpool(backend_.get(), pool_.get());
}

void Backend::SetStop(std::function<bool()> stop) {
  stop_ = std::move(stop);
  ggml_backend_cpu_set_abort_callback(
      backend_.get(),
      [](void* self) {
        const auto& stop_now = static_cast<Backend*>(self)->stop_;
        return stop_now && stop_now();
      },
      this);
}

std::string GgmlInstructionSets() {
  std::string text;
  const auto add = [&text](int has, const char* name) {
    if (has != 0) {
      text += (text.empty() ? "" : " ") + std::string(name);
    }
  };
  add(ggml_cpu_has_avx2(), "AVX2");
  add(ggml_cpu_has_fma(), "FMA");
  add(ggml_cpu_has_f16c(), "F16C");
  add(ggml_cpu_has_avx512(), "AVX512");
  add(ggml_cpu_has_avx512_vnni(), "AVX512-VNNI");
  add(ggml_cpu_has_avx512_bf16(), "AVX512-BF16");
  add(ggml_cpu_has_amx_int8(), "AMX-INT8");
  add(ggml_cpu_has_neon(), "NEON");
  return text.empty() ? "none" : text;
}

}  // namespace vericache
