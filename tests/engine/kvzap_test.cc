// What networks say of hidden states, as it is recorded, learned and used.
#include "compressor/kvzap.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compressor/refresh.h"
#include "engine/compressor_for.h"
#include "evaluation/kvzap_trainer.h"
#include "evaluation/text_windows.h"
#include "ggml-backend.h"
#include "gtest/gtest.h"
#include "model/score_predictor.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

// Runs a text of random tokens and records all that networks see and say.
struct Recorded {
  Recorded(const Model& model, std::shared_ptr<const ScorePredictor> predictor, int tokens,
           int chunk)
      : text(RandomTokens(tokens, model.params().vocabulary, 5)),
        pool({std::numeric_limits<std::uint64_t>::max()}),
        cache(pool, PageKind::kTransient, model.params().geometry(), KvFormat{}) {
    taps.hidden.emplace(model.params().layers, tokens, model.params().embedding);
    taps.predicted.emplace(std::move(predictor), model.params().geometry());
    Transformer transformer(model, 1);
    Prefill(transformer, text, chunk, cache, &taps);
  }

  std::vector<TokenId> text;
  PagePool pool;
  KvCache cache;
  Taps taps;
};

struct Network {
  explicit Network(const Model& model) : path((folder.path() / "network.gguf").string()) {
    std::ofstream(path, std::ios::binary) << TinyPredictor(model.params());
    predictor = std::make_shared<const ScorePredictor>(path, model.params());
  }

  TempDir folder;
  std::string path;
  std::shared_ptr<const ScorePredictor> predictor;
};

// A tensor of a network's file, read without ScorePredictor.
std::vector<float> Tensor(const std::string& path, const std::string& name) {
  const GgufFile file(path);
  const GgufFile::Tensor* tensor = file.Find(name);
  std::vector<float> values(tensor->size.count / sizeof(float));
  std::ifstream bytes(path, std::ios::binary);
  bytes.seekg(static_cast<std::streamoff>(tensor->offset));
  bytes.read(reinterpret_cast<char*>(values.data()),
             static_cast<std::streamsize>(tensor->size.count));
  return values;
}

TEST(KvZap, HiddenStatesAreTheNormalizedEmbeddingsInTheFirstLayer) {
  const Model& model = LoadTiny(TinyModel{});
  const Recorded recorded(model, Network(model).predictor, 40, 16);
  const auto width = static_cast<std::size_t>(model.params().embedding);
  const std::vector<float> embedding =
      Tensor(TinyGgufPath(TinyModel{}).string(), "token_embd.weight");
  const std::vector<float> norm =
      Tensor(TinyGgufPath(TinyModel{}).string(), "blk.0.attn_norm.weight");
  const std::span<const float> hidden = recorded.taps.hidden->of(LayerId{0});
  for (std::size_t row = 0; row < recorded.text.size(); ++row) {
    const float* x = embedding.data() + static_cast<std::size_t>(Raw(recorded.text[row])) * width;
    double squares = 0.0;
    for (std::size_t c = 0; c < width; ++c) {
      squares += static_cast<double>(x[c]) * x[c];
    }
    const double scale =
        1.0 / std::sqrt(squares / static_cast<double>(width) + model.params().rms_epsilon);
    for (std::size_t c = 0; c < width; ++c) {
      EXPECT_NEAR(hidden[row * width + c], x[c] * scale * norm[c], 1e-4);
    }
  }
}

TEST(KvZap, ScoresAreWhatTheNetworkSaysOfTheHiddenStates) {
  const Model& model = LoadTiny(TinyModel{});
  const Network network(model);
  for (const int chunk : {7, 512}) {
    const Recorded recorded(model, network.predictor, 100, chunk);
    const auto width = static_cast<std::size_t>(model.params().embedding);
    for (int layer = 0; layer < model.params().layers; ++layer) {
      const auto tensor = [&](const char* part) {
        return Tensor(network.path, "layers." + std::to_string(layer) + "." + part);
      };
      const std::vector<float> up = tensor("up.weight");
      const std::vector<float> up_bias = tensor("up.bias");
      const std::vector<float> down = tensor("down.weight");
      const std::vector<float> down_bias = tensor("down.bias");
      const std::span<const float> hidden = recorded.taps.hidden->of(LayerId{layer});
      for (int position = 0; position < 100; ++position) {
        for (int head = 0; head < model.params().kv_heads; ++head) {
          double score = down_bias[static_cast<std::size_t>(head)];
          for (std::size_t i = 0; i < up_bias.size(); ++i) {
            double x = up_bias[i];
            for (std::size_t c = 0; c < width; ++c) {
              x += static_cast<double>(up[i * width + c]) *
                   hidden[static_cast<std::size_t>(position) * width + c];
            }
            score += down[static_cast<std::size_t>(head) * up_bias.size() + i] * x /
                     (1.0 + std::exp(-x));
          }
          EXPECT_NEAR(recorded.taps.predicted->of(LayerId{layer}, head,
                                                  100)[static_cast<std::size_t>(position)],
                      score, 1e-4 * (1.0 + std::abs(score)));
        }
      }
    }
  }
}

// The positions of the highest scores, of the prompt and of what came after alike, and the window.
TEST(KvZap, KeepsWhatTheNetworkSaysWhileTheTextGrows) {
  const Model& model = LoadTiny(TinyModel{});
  const Network network(model);
  constexpr int kPrompt = 100;
  constexpr int kAll = 140;
  const Recorded recorded(model, network.predictor, kAll, 64);
  const Compressor compressor = CompressorFor("kvzap:recent=8,network=" + network.path, model);
  EXPECT_TRUE(compressor.refreshes());
  RefreshState state{.scores = {}, .prompt = kPrompt, .seen = kPrompt};
  PagePool pool(kAmple);
  const KvCache cache = Refresh(compressor, state,
                                {.full = recorded.cache,
                                 .taps = &recorded.taps,
                                 .positions = kAll,
                                 .heads = model.params().heads},
                                0.2, pool);
  const int kept = kPrompt / 5 + kAll - kPrompt;
  EXPECT_EQ(cache.tail_slots(LayerId{0}), kept);
  // The scorer's own word, with the sinks and the window before all others.
  const auto dim = static_cast<std::size_t>(model.params().head_dim);
  for (int head = 0; head < model.params().kv_heads; ++head) {
    const std::span<const float> predicted = recorded.taps.predicted->of(LayerId{0}, head, kAll);
    std::vector<int> others;
    for (int i = KvZap::kSinks; i < kAll - 8; ++i) {
      others.push_back(i);
    }
    std::ranges::sort(others, [&](int a, int b) {
      return predicted[static_cast<std::size_t>(a)] > predicted[static_cast<std::size_t>(b)];
    });
    std::vector<int> expected(others.begin(), others.begin() + kept - 8 - KvZap::kSinks);
    for (int i = 0; i < KvZap::kSinks; ++i) {
      expected.push_back(i);
    }
    for (int i = kAll - 8; i < kAll; ++i) {
      expected.push_back(i);
    }
    std::ranges::sort(expected);
    EXPECT_LT(expected[4], kPrompt);
    EXPECT_GE(expected[static_cast<std::size_t>(kept - 9)], kPrompt);
    std::vector<float> key(dim);
    std::vector<float> value(dim);
    std::vector<float> full_key(dim);
    for (int slot = 0; slot < kept; ++slot) {
      cache.ReadTail(LayerId{0}, slot, head, key, value);
      recorded.cache.ReadTail(LayerId{0}, expected[static_cast<std::size_t>(slot)], head, full_key,
                              value);
      EXPECT_EQ(key, full_key) << "head " << head << " slot " << slot;
    }
  }
}

// Inputs and a function of them, of three outputs.
struct Task {
  Task(int rows, unsigned seed, bool noise) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int row = 0; row < rows; ++row) {
      const std::size_t first = inputs.size();
      for (int c = 0; c < kWidth; ++c) {
        inputs.push_back(30.0F * normal(random));
      }
      const float a = inputs[first] / 30.0F;
      const float b = inputs[first + 1] / 30.0F;
      for (const float y : {a + 5.0F, std::abs(a) - 3.0F * b, std::max(a, b)}) {
        outputs.push_back(noise ? normal(random) : y);
      }
    }
  }

  Examples examples() const {
    return {.inputs = inputs, .outputs = outputs, .width = kWidth, .outputs_of_row = 3};
  }

  static constexpr int kWidth = 12;
  std::vector<float> inputs;
  std::vector<float> outputs;
};

TEST(FitNetwork, LearnsAFunctionAndSaysHowWell) {
  const FitOptions options = {.hidden = 16, .epochs = 40};
  const Fit fit =
      FitNetwork(Task(2000, 1, false).examples(), Task(500, 2, false).examples(), options);
  EXPECT_GT(fit.r2, 0.95);
  const Fit noise =
      FitNetwork(Task(2000, 1, true).examples(), Task(500, 2, true).examples(), options);
  EXPECT_LT(noise.r2, 0.05);
}

TEST(TrainKvZap, TellsKvZipsScoresOfOtherText) {
  const Model& model = LoadTiny(TinyModel{});
  Transformer transformer(model, 1);
  // Few words, so that most of what a key is worth is what its token is.
  std::vector<TokenId> text = RandomTokens(3000, 12, 3);
  const RepeatPrompt repeat = {.first = {TokenId{7}}, .next = {TokenId{8}}, .suffix = {TokenId{9}}};
  const TrainingOptions options = {.tokens = 3000, .window = 500, .epochs = 10};
  const std::vector<Fit> fits = TrainKvZap(transformer, {{text}}, repeat, options);
  ASSERT_EQ(fits.size(), 2U);
  EXPECT_GT(fits[0].r2, 0.1);
  EXPECT_THROW(TrainKvZap(transformer, {{RandomTokens(100, 12, 3)}}, repeat, options), UserError);
}

}  // namespace
}  // namespace vericache
