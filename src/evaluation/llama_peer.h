// libllama on the same prompts, as a peer to compare our speed with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"

namespace vericache {

struct PeerSpeed {
  double prefill_tokens_per_s = 0.0;  // of all prompts, one after the other
  double decode_tokens_per_s = 0.0;   // of the whole batch
};

// What llama.cpp's batched benchmark does, on real text: the prompts are computed in chunks of
// 512, then all sequences decode together, greedily. Flash attention, f16 caches, and its own
// choice of weight layouts.
class LlamaPeer {
 public:
  // Loads the model once more, which is memory-mapped. Throws UserError where libllama does not.
  LlamaPeer(const std::string& model, int threads);
  ~LlamaPeer();
  LlamaPeer(const LlamaPeer&) = delete;
  LlamaPeer& operator=(const LlamaPeer&) = delete;

  // Prompts are not empty; `new_tokens` are decoded in each, and measured. Throws UserError where
  // libllama fails, as for want of memory.
  PeerSpeed Measure(
      const std::vector<Prompt>& prompts, int new_tokens,
      const std::function<void(const std::string& what, int done, int total)>& progress);

 private:
  struct Loaded;
  std::unique_ptr<Loaded> loaded_;
};

}  // namespace vericache
