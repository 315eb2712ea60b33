#include "evaluation/kvzap_trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/memory.h"
#include "base/size.h"
#include "evaluation/text_windows.h"

namespace vericache {
namespace {

// Attention below it tells nothing more.
constexpr float kLeast = 1e-8F;

// The rows of one layer, of all contexts.
struct LayerExamples {
  std::vector<float> states;  // [row][embedding]
  std::vector<float> scores;  // [row][kv_head]
};

// What one context gives.
void AddRows(const Taps& taps, LayerId layer, int kv_heads, LayerExamples& rows) {
  const std::span<const float> states = taps.hidden->of(layer);
  rows.states.insert(rows.states.end(), states.begin(), states.end());
  std::vector<std::vector<float>> scores;
  scores.reserve(Size(kv_heads));
  for (int head = 0; head < kv_heads; ++head) {
    scores.push_back(taps.repeated->weights(layer, head));
  }
  for (std::size_t position = 0; position < scores[0].size(); ++position) {
    for (const std::vector<float>& of_head : scores) {
      rows.scores.push_back(std::log(std::max(of_head[position], kLeast)));
    }
  }
}

}  // namespace

std::vector<Fit> TrainKvZap(Transformer& transformer, std::span<const std::vector<TokenId>> texts,
                            const RepeatPrompt& repeat, const TrainingOptions& options,
                            const std::function<void(int done, int total)>& on_progress) {
  const ModelParams& params = transformer.model().params();
  // While it is repeated a text is there twice.
  const auto windows = TextWindows(texts, options.tokens, options.window, params.context / 2);
  std::size_t tokens = 0;
  for (const auto& window : windows) {
    tokens += window.size();
  }
  if (tokens < 2 * kFitBatch) {
    throw UserError("too little text to train with: it has less than " +
                    std::to_string(2 * kFitBatch) + " tokens");
  }
  const int total = 2 * static_cast<int>(windows.size()) + params.layers;
  int done = 0;
  const auto tell = [&] {
    if (on_progress) {
      on_progress(++done, total);
    }
  };
  const std::uint64_t floats = tokens * Size(params.embedding + params.kv_heads);
  RequireMemory({floats * Size(params.layers) * sizeof(float)},
                "the hidden states of " + std::to_string(tokens) + " tokens (see --tokens)");
  std::vector<LayerExamples> layers(Size(params.layers));
  for (LayerExamples& layer : layers) {
    layer.states.reserve(tokens * Size(params.embedding));
    layer.scores.reserve(tokens * Size(params.kv_heads));
  }
  for (const auto& window : windows) {
    PagePool pool({std::numeric_limits<std::uint64_t>::max()});
    KvCache cache(pool, PageKind::kTransient, params.geometry(), KvFormat{});
    Taps taps;
    taps.hidden.emplace(params.layers, static_cast<int>(window.size()), params.embedding);
    Prefill(transformer, window, options.prefill_chunk, cache, &taps);
    tell();
    RecordRepetition(transformer, cache, window, repeat, KvZip::kChunk, options.prefill_chunk,
                     taps);
    tell();
    for (int i = 0; i < params.layers; ++i) {
      AddRows(taps, LayerId{i}, params.kv_heads, layers[Size(i)]);
    }
  }
  const int held_out = std::max(kFitBatch, static_cast<int>(tokens) / 8);
  const std::size_t trained = tokens - Size(held_out);
  std::vector<Fit> fits;
  for (const LayerExamples& rows : layers) {
    const std::span<const float> states = rows.states;
    const std::span<const float> scores = rows.scores;
    const auto examples = [&](std::size_t first, std::size_t count) {
      return Examples{
          .inputs = states.subspan(first * Size(params.embedding), count * Size(params.embedding)),
          .outputs = scores.subspan(first * Size(params.kv_heads), count * Size(params.kv_heads)),
          .width = params.embedding,
          .outputs_of_row = params.kv_heads};
    };
    fits.push_back(FitNetwork(examples(0, trained), examples(trained, Size(held_out)),
                              {.hidden = std::max(8, params.embedding / kWidthOverHidden),
                               .epochs = options.epochs,
                               .threads = transformer.threads()}));
    if (!std::isfinite(fits.back().r2)) {
      throw UserError("the training of layer " + std::to_string(fits.size() - 1) +
                      " leads nowhere; try other texts");
    }
    tell();
  }
  return fits;
}

}  // namespace vericache
