// KVQuant with a model: its RoPE, its calibration and the file of it.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "compressor/kvquant_calibration.h"
#include "engine/compressor_for.h"
#include "evaluation/kvquant_calibrator.h"
#include "ggml-cpu.h"
#include "gtest/gtest.h"
#include "model/rope.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

using RopeVariant = std::pair<std::string, TinyRope>;

class KvQuantOfModel : public testing::TestWithParam<RopeVariant> {
 protected:
  static TinyModel Tiny() {
    const auto& [architecture, rope] = GetParam();
    return {.architecture = architecture, .rope = rope};
  }
};

TEST_P(KvQuantOfModel, RopeTableTurnsAsTheModelDoes) {
  const Model& model = LoadTiny(Tiny());
  const auto table = RopeTableOf(model);
  EXPECT_GE(table->positions(), model.params().context);
  const int dim = model.params().head_dim;
  const std::vector<int> at = {0, 1, 63, 64, 65, 700, 1023, model.params().context - 1};
  const GgmlContext context(ggml_init({.mem_size = std::size_t{1} << 20U, .mem_buffer = nullptr}));
  const auto count = static_cast<std::int64_t>(at.size());
  ggml_tensor* positions = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, count);
  ggml_tensor* x = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, dim, 1, count);
  std::vector<float> row;
  for (int c = 0; c < dim; ++c) {
    row.push_back(std::sin(static_cast<float>(c * c + 1)));
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    static_cast<std::int32_t*>(positions->data)[i] = at[i];
    std::ranges::copy(row, static_cast<float*>(x->data) + i * row.size());
  }
  ggml_tensor* turned =
      Rotate(context.get(), x, positions, model.params().rope, model.weights().rope_factors());
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, turned);
  ASSERT_EQ(ggml_graph_compute_with_ctx(context.get(), graph, 1), GGML_STATUS_SUCCESS);
  for (std::size_t i = 0; i < at.size(); ++i) {
    std::vector<float> ours = row;
    table->Turn(ours, at[i]);
    for (std::size_t c = 0; c < row.size(); ++c) {
      EXPECT_NEAR(ours[c], static_cast<float*>(turned->data)[i * row.size() + c], 3e-4F)
          << "position " << at[i] << ", channel " << c;
    }
  }
}

// A compressed cache's keys and values, read as attention does, beside the full cache's: relative
// error over all of a layer.
std::pair<double, double> Errors(const KvCache& full, const KvCache& cache, LayerId layer) {
  const CacheGeometry& geometry = full.geometry();
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  std::pair<double, double> squares;
  std::pair<double, double> errors;
  std::vector<float> a(dim);
  std::vector<float> b(dim);
  const SegmentView view = cache.packed_view(layer, 0);
  const auto add = [&](double& square, double& error) {
    for (std::size_t c = 0; c < dim; ++c) {
      square += static_cast<double>(a[c]) * static_cast<double>(a[c]);
      error += std::pow(static_cast<double>(a[c] - b[c]), 2.0);
    }
  };
  for (int slot = 0; slot < view.end; ++slot) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      KeyAt(full.tail_view(layer), head, slot, a);
      KeyAt(view, head, slot, b);
      add(squares.first, errors.first);
      ValueAt(full.tail_view(layer), head, slot, a);
      ValueAt(view, head, slot, b);
      add(squares.second, errors.second);
    }
  }
  return {std::sqrt(errors.first / squares.first), std::sqrt(errors.second / squares.second)};
}

TEST_P(KvQuantOfModel, HoldsAPromptsKeysAndValuesToTheErrorOfItsBits) {
  const TinyModel tiny = Tiny();
  const Model& model = LoadTiny(tiny);
  Transformer transformer(model, 1);
  constexpr int kRows = 300;
  const std::vector<TokenId> tokens = RandomTokens(kRows, tiny.vocabulary, 3);
  PagePool pool({std::numeric_limits<std::uint64_t>::max()});
  KvCache full(pool, PageKind::kResident, model.params().geometry(), KvFormat{});
  ASSERT_TRUE(full.Extend(kRows));
  std::vector<Position> positions;
  for (int i = 0; i < kRows; ++i) {
    positions.push_back(Position{i});
  }
  const AttentionTask task{.cache = &full, .first_row = 0, .rows = kRows};
  transformer.Forward(
      {.tokens = tokens, .positions = positions, .outputs = {}, .tasks = {&task, 1}});

  const TempDir folder;
  const std::string path = (folder.path() / "calibration.json").string();
  const std::vector<TokenId> text = RandomTokens(1000, tiny.vocabulary, 4);
  const std::vector<KvQuant> layers = CalibrateKvQuant(transformer, {&text, 1}, {.window = 300});
  std::ofstream(path) << ToText({.model = "tiny", .layers = layers});

  const std::vector<std::pair<std::string, double>> bounds = {
      {"kvquant4", 0.11}, {"kvquant3", 0.2}, {"kvquant2", 0.38}};
  for (const auto& [name, bound] : bounds) {
    for (const std::string& levels : {std::string(), ":levels=" + path}) {
      const Compressor compressor = CompressorFor(name + levels, model);
      EXPECT_EQ(compressor.note.empty(), !levels.empty()) << compressor.note;
      const KvCache cache =
          Compress(compressor, {.full = full, .positions = kRows, .heads = tiny.heads}, 1.0, pool);
      for (int layer = 0; layer < tiny.layers; ++layer) {
        const auto [keys, values] = Errors(full, cache, LayerId{layer});
        EXPECT_LT(keys, bound) << name << levels << ", layer " << layer;
        EXPECT_LT(values, bound) << name << levels << ", layer " << layer;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, KvQuantOfModel,
                         testing::Values(RopeVariant("llama", TinyRope::kPlain),
                                         RopeVariant("llama", TinyRope::kFactors),
                                         RopeVariant("qwen2", TinyRope::kLinear),
                                         RopeVariant("qwen3", TinyRope::kYarn)));

class KvQuantCalibrationFile : public testing::Test {
 protected:
  static const Model& TheModel() { return LoadTiny({}); }
  std::string Write(const std::string& text) {
    std::ofstream(path()) << text;
    return path();
  }
  std::string path() const { return (folder_.path() / "calibration.json").string(); }

  std::string Refusal(const std::string& file) {
    try {
      CompressorFor("kvquant3:levels=" + file, TheModel());
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  TempDir folder_;
};

std::vector<KvQuant> Calibrated(const Model& model) {
  Transformer transformer(model, 1);
  const std::vector<TokenId> text = RandomTokens(200, model.params().vocabulary, 4);
  return CalibrateKvQuant(transformer, {&text, 1}, {});
}

TEST_F(KvQuantCalibrationFile, IsReadAsItWasWritten) {
  const std::vector<KvQuant> layers = Calibrated(TheModel());
  ASSERT_EQ(layers.size(), 2U);
  const std::string path = Write(ToText({.model = "a \"name\"", .layers = layers}));
  const KvQuantCalibration read = ReadCalibration(path, TheModel().params().geometry());
  EXPECT_EQ(read.model, "a \"name\"");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(read.layers[i].key_levels, layers[i].key_levels);
    EXPECT_EQ(read.layers[i].value_levels, layers[i].value_levels);
    EXPECT_NE(layers[i].value_levels, kNormalLevels);
    for (std::size_t c = 0; c < layers[i].key_centers.size(); ++c) {
      EXPECT_NEAR(read.layers[i].key_centers[c], layers[i].key_centers[c], 1e-5F);
      EXPECT_NEAR(read.layers[i].key_halves[c], layers[i].key_halves[c], 1e-5F);
      EXPECT_GT(layers[i].key_halves[c], 0.0F);
    }
  }
}

TEST_F(KvQuantCalibrationFile, IsRefusedWhereItIsNoneForTheModel) {
  EXPECT_NE(Refusal("/no/such/file").find("vericache calibrate kvquant"), std::string::npos);
  EXPECT_NE(Refusal(Write("{")).find("is not a calibration"), std::string::npos);
  std::vector<KvQuant> layers = Calibrated(TheModel());
  const std::string good = ToText({.model = "", .layers = layers});
  EXPECT_EQ(Refusal(Write(good)), "");
  std::string unsorted = good;
  unsorted.replace(unsorted.find("[[-"), 3, "[[");
  EXPECT_NE(Refusal(Write(unsorted)).find("ascending"), std::string::npos);
  layers[1].key_halves.pop_back();
  EXPECT_NE(Refusal(Write(ToText({.model = "", .layers = layers}))).find("key channels"),
            std::string::npos);
  layers.pop_back();
  EXPECT_NE(Refusal(Write(ToText({.model = "", .layers = layers}))).find("1 layers"),
            std::string::npos);
}

TEST_F(KvQuantCalibrationFile, ServesAnEngineWithoutChangingItsOutput) {
  const Model& model = TheModel();
  const std::string path = Write(ToText({.model = "", .layers = Calibrated(model)}));
  const std::vector<Prompt> prompts = {
      {.id = "0", .tokens = RandomTokens(500, model.params().vocabulary, 1), .max_tokens = 60}};
  const std::vector<Result> full = RunFull(model, prompts);
  for (const std::string name : {"kvquant4", "kvquant2", "snapkv+kvquant3"}) {
    const auto results = RunEngine(
        model, VeriCacheOptions(name + ":levels=" + path, /*keep=*/0.5, /*draft_length=*/8),
        prompts);
    EXPECT_EQ(Difference(full, results), "") << name;
  }
}

TEST(CalibrateKvQuant, RefusesTooLittleText) {
  const Model& model = LoadTiny({});
  Transformer transformer(model, 1);
  const std::vector<TokenId> text = RandomTokens(40, model.params().vocabulary, 4);
  EXPECT_THROW(CalibrateKvQuant(transformer, {&text, 1}, {}), UserError);
}

}  // namespace
}  // namespace vericache
