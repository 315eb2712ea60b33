#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ggml-backend.h"
#include "ggml-cpu.h"

namespace vericache {

// ggml's CPU backend with a thread pool that lives as long as it.
class Backend {
 public:
  explicit Backend(int threads);

  ggml_backend_t get() const { return backend_.get(); }
  int threads() const { return threads_; }

  // `stop` is asked between the nodes of a graph; where it says yes the computation is abandoned.
  void SetStop(std::function<bool()> stop);

 private:
  struct FreePool {
    void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
  };
  struct FreeBackend {
    void operator()(ggml_backend* backend) const { ggml_backend_free(backend); }
  };

  int threads_;
  std::unique_ptr<ggml_threadpool, FreePool> pool_;
  std::unique_ptr<ggml_backend, FreeBackend> backend_;
  std::function<bool()> stop_;
};

// The instruction sets that ggml's CPU backend uses, "AVX2 FMA F16C"; it is compiled for the
// machine that built it. "none" where it knows of none.
std::string GgmlInstructionSets();

}  // namespace vericache
