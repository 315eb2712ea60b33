#include "support/oracle.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "llama.h"
#include "model/transformer.h"

namespace vericache {
namespace {

struct FreeLlama {
  void operator()(llama_model* model) const { llama_model_free(model); }
  void operator()(llama_context* context) const { llama_free(context); }
};

}  // namespace

std::vector<float> OracleLogits(const std::filesystem::path& path, std::span<const TokenId> tokens,
                                NumberFormat cache) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model_params model_params = llama_model_default_params();
  model_params.use_extra_bufts = false;
  const std::unique_ptr<llama_model, FreeLlama> model(
      llama_model_load_from_file(path.c_str(), model_params));
  if (!model) {
    throw std::runtime_error("libllama does not load " + path.string());
  }
  const auto count = static_cast<std::int32_t>(tokens.size());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(count);
  params.n_batch = params.n_ctx;
  params.n_ubatch = params.n_ctx;
  params.n_threads = 1;
  params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = cache == NumberFormat::kF32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
  params.type_v = params.type_k;
  const std::unique_ptr<llama_context, FreeLlama> context(
      llama_init_from_model(model.get(), params));
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (std::int32_t i = 0; i < count; ++i) {
    batch.token[i] = Raw(tokens[static_cast<std::size_t>(i)]);
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  const int failed = context ? llama_decode(context.get(), batch) : -1;
  llama_batch_free(batch);
  if (failed != 0) {
    throw std::runtime_error("libllama does not decode");
  }
  const auto vocabulary =
      static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));
  std::vector<float> logits;
  for (std::int32_t i = 0; i < count; ++i) {
    const float* row = llama_get_logits_ith(context.get(), i);
    logits.insert(logits.end(), row, row + vocabulary);
  }
  return logits;
}

std::vector<float> OurLogits(const Model& model, std::span<const TokenId> tokens,
                             NumberFormat cache_format, int chunk) {
  PagePool pool({std::uint64_t{1} << 32U});
  KvCache cache(pool, PageKind::kResident, model.params().geometry(),
                {.keys = cache_format, .values = cache_format});
  Transformer transformer(model, /*threads=*/1);
  std::vector<float> logits;
  for (int first = 0; first < static_cast<int>(tokens.size()); first += chunk) {
    const int rows = std::min(chunk, static_cast<int>(tokens.size()) - first);
    if (!cache.Extend(rows)) {
      throw std::runtime_error("pool");
    }
    std::vector<Position> positions;
    std::vector<int> outputs;
    for (int i = 0; i < rows; ++i) {
      positions.push_back(Position{first + i});
      outputs.push_back(i);
    }
    const AttentionTask task{
        .cache = &cache, .first_row = 0, .rows = rows, .first_position = first};
    const std::span<const float> some = transformer.Forward(
        {.tokens = tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)),
         .positions = positions,
         .outputs = outputs,
         .tasks = std::span(&task, 1)});
    logits.insert(logits.end(), some.begin(), some.end());
  }
  return logits;
}

std::string LogitsComparison::Describe() const {
  std::ostringstream text;
  text << positions << " positions: largest difference " << largest << ", root mean square "
       << root_mean_square << ", logits' deviation " << spread << ", other argmax at "
       << other_argmax << ", by a margin of up to " << widest_margin;
  return text.str();
}

LogitsComparison CompareLogits(std::span<const float> oracle, std::span<const float> ours,
                               int vocabulary) {
  LogitsComparison result;
  if (oracle.size() != ours.size()) {
    throw std::runtime_error("different numbers of logits");
  }
  const auto width = static_cast<std::size_t>(vocabulary);
  double sum = 0.0;
  double squares = 0.0;
  double errors = 0.0;
  for (std::size_t at = 0; at < oracle.size(); at += width) {
    const std::span<const float> want = oracle.subspan(at, width);
    const std::span<const float> have = ours.subspan(at, width);
    double largest = 0.0;
    for (std::size_t i = 0; i < width; ++i) {
      const double error = std::abs(double{want[i]} - double{have[i]});
      // A NaN must not pass as small.
      largest = error <= largest ? largest : error;
      sum += want[i];
      squares += double{want[i]} * want[i];
      errors += error * error;
    }
    result.largest = largest <= result.largest ? result.largest : largest;
    const auto best = std::max_element(want.begin(), want.end()) - want.begin();
    if (best != std::max_element(have.begin(), have.end()) - have.begin()) {
      std::vector<float> sorted(want.begin(), want.end());
      std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
      ++result.other_argmax;
      result.widest_margin = std::max(result.widest_margin, double{sorted[0]} - double{sorted[1]});
    }
    ++result.positions;
  }
  const auto count = static_cast<double>(oracle.size());
  result.root_mean_square = std::sqrt(errors / count);
  result.spread = std::sqrt(squares / count - (sum / count) * (sum / count));
  return result;
}

}  // namespace vericache
