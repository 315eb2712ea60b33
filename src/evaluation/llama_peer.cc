#include "evaluation/llama_peer.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/error.h"
#include "llama.h"

namespace vericache {
namespace {

constexpr int kChunk = 512;

struct FreeLlama {
  void operator()(llama_context* context) const { llama_free(context); }
};

// Rows for one llama_decode.
class Batch {
 public:
  explicit Batch(int rows) : batch_(llama_batch_init(rows, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Clear() { batch_.n_tokens = 0; }
  void Add(llama_token token, int position, int sequence, bool output) {
    const int i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = output ? 1 : 0;
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace

struct LlamaPeer::Loaded {
  std::unique_ptr<llama_model, decltype(&llama_model_free)> model{nullptr, llama_model_free};
  int threads = 1;
};

LlamaPeer::LlamaPeer(const std::string& model, int threads) : loaded_(std::make_unique<Loaded>()) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  loaded_->model.reset(llama_model_load_from_file(model.c_str(), llama_model_default_params()));
  loaded_->threads = threads;
  if (!loaded_->model) {
    throw UserError("libllama does not load " + model);
  }
}

LlamaPeer::~LlamaPeer() = default;

PeerSpeed LlamaPeer::Measure(
    const std::vector<Prompt>& prompts, int new_tokens,
    const std::function<void(const std::string& what, int done, int total)>& progress) {
  const auto sequences = static_cast<int>(prompts.size());
  std::size_t longest = 0;
  for (const Prompt& prompt : prompts) {
    longest = std::max(longest, prompt.tokens.size());
  }
  llama_context_params params = llama_context_default_params();
  // One cache for each sequence, of a multiple of 256 slots, as libllama wants them.
  const auto slots = static_cast<std::uint32_t>(
      (longest + static_cast<std::size_t>(new_tokens) + 256) / 256 * 256);
  params.n_ctx = slots * static_cast<std::uint32_t>(sequences);
  params.n_seq_max = static_cast<std::uint32_t>(sequences);
  params.n_batch = static_cast<std::uint32_t>(std::max(kChunk, sequences));
  params.n_ubatch = params.n_batch;
  params.n_threads = loaded_->threads;
  params.n_threads_batch = loaded_->threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = GGML_TYPE_F16;
  params.type_v = GGML_TYPE_F16;
  const std::unique_ptr<llama_context, FreeLlama> context(
      llama_init_from_model(loaded_->model.get(), params));
  if (!context) {
    throw UserError("libllama has no memory for " + std::to_string(sequences) + " caches of " +
                    std::to_string(slots) + " tokens; fewer or shorter prompts are needed");
  }
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(loaded_->model.get()));
  Batch batch(static_cast<int>(params.n_batch));
  const auto decode = [&] {
    if (llama_decode(context.get(), batch.get()) != 0) {
      throw UserError("libllama does not decode");
    }
  };
  const auto best = [&](int row) {
    const std::span logits(llama_get_logits_ith(context.get(), row),
                           static_cast<std::size_t>(vocabulary));
    return static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) -
                                    logits.begin());
  };

  PeerSpeed speed;
  std::vector<llama_token> last;
  std::size_t prefilled = 0;
  Clock::time_point start = Clock::now();
  for (int sequence = 0; sequence < sequences; ++sequence) {
    const std::vector<TokenId>& tokens = prompts[static_cast<std::size_t>(sequence)].tokens;
    const auto size = static_cast<int>(tokens.size());
    for (int first = 0; first < size; first += kChunk) {
      batch.Clear();
      for (int i = first; i < std::min(first + kChunk, size); ++i) {
        batch.Add(Raw(tokens[static_cast<std::size_t>(i)]), i, sequence, i + 1 == size);
      }
      decode();
      progress("llama.cpp: prefill of " + std::to_string(sequence + 1) + " of " +
                   std::to_string(sequences),
               std::min(first + kChunk, size), size);
    }
    last.push_back(best(-1));
    prefilled += tokens.size();
  }
  speed.prefill_tokens_per_s = static_cast<double>(prefilled) / SecondsSince(start);

  start = Clock::now();
  for (int step = 0; step < new_tokens; ++step) {
    batch.Clear();
    for (int sequence = 0; sequence < sequences; ++sequence) {
      const auto at = static_cast<std::size_t>(sequence);
      batch.Add(last[at], static_cast<int>(prompts[at].tokens.size()) + step, sequence, true);
    }
    decode();
    for (int sequence = 0; sequence < sequences; ++sequence) {
      last[static_cast<std::size_t>(sequence)] = best(sequence);
    }
    progress("llama.cpp, batch " + std::to_string(sequences), step + 1, new_tokens);
  }
  speed.decode_tokens_per_s = sequences * new_tokens / SecondsSince(start);
  return speed;
}

}  // namespace vericache
