#include "engine/engine_options.h"

#include <algorithm>

#include "base/error.h"
#include "compressor/compressor.h"
#include "ggml.h"

namespace vericache {
namespace {

// Longer drafts are never all accepted.
constexpr int kMaxDraftLength = 1024;

}  // namespace

double KeepOf(const EngineOptions& options, int prompt) {
  return std::clamp(static_cast<double>(kPageSlots) / prompt, options.keep, 1.0);
}

void ValidateOptions(const EngineOptions& options) {
  if (!(options.keep > 0.0 && options.keep <= 1.0)) {
    throw UserError("--keep must be above 0 and at most 1");
  }
  if (options.draft_length < 1 || options.draft_length > kMaxDraftLength) {
    throw UserError("--draft-length must be from 1 to " + std::to_string(kMaxDraftLength));
  }
  if (options.batch < 1) {
    throw UserError("--batch must be at least 1");
  }
  if (options.prefill_chunk < 1) {
    throw UserError("--prefill-chunk must be at least 1");
  }
  if (options.link_bandwidth && !(*options.link_bandwidth > 0.0)) {
    throw UserError("--link-bandwidth must be above 0");
  }
  if (!(options.weights_share >= 0.0 && options.weights_share <= 1.0)) {
    throw UserError("--weights-share must be in [0, 1]");
  }
  if (options.threads < 1 || options.threads > GGML_MAX_N_THREADS) {
    throw UserError("--threads must be from 1 to " + std::to_string(GGML_MAX_N_THREADS));
  }
  MakeCompressor(options.compressor);
}

}  // namespace vericache
