#include "model/backend.h"

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

}  // namespace vericache
