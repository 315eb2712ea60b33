#include "engine/compressor_for.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "compressor/kvquant_calibration.h"
#include "model/key_outliers.h"
#include "model/rope.h"
#include "model/score_predictor.h"

namespace vericache {
namespace {

// Gives KVQuant formats the calibration that the name says, or the one beside the model, and RoPE.
void PrepareKvQuant(Compressor& compressor, const Model& model) {
  const CacheGeometry geometry = model.params().geometry();
  const std::string beside = CalibrationFileOf(model.file().path().string());
  std::string path = compressor.calibration;
  if (path.empty() && std::filesystem::exists(beside)) {
    path = beside;
  }
  std::vector<KvQuant> layers(static_cast<std::size_t>(geometry.layers));
  if (path.empty()) {
    compressor.note += std::string(compressor.note.empty() ? "" : "; ") +
                       "without a calibration its levels are those of a normal distribution, and "
                       "key ranges each prompt's (vericache calibrate kvquant makes one)";
  } else {
    layers = ReadCalibration(path, geometry).layers;
  }
  const auto rope = RopeTableOf(model);
  for (KvQuant& layer : layers) {
    layer.rope = rope;
    compressor.kvquant.push_back(std::make_shared<const KvQuant>(std::move(layer)));
  }
}

}  // namespace

Compressor CompressorFor(std::string_view name, const Model& model) {
  Compressor compressor = MakeCompressor(name);
  const CacheGeometry geometry = model.params().geometry();
  if (!compressor.layers.empty() &&
      compressor.layers.size() != static_cast<std::size_t>(geometry.layers)) {
    throw UserError("'" + std::string(name) + "' is for " +
                    std::to_string(compressor.layers.size()) + " layers; this model has " +
                    std::to_string(geometry.layers));
  }
  ProtectOutlierKeys(compressor, LayersWithKeyOutliers(model));
  if (compressor.IsKvQuant()) {
    PrepareKvQuant(compressor, model);
  }
  if (const auto network = compressor.scorer ? compressor.scorer->network() : std::nullopt) {
    compressor.predictor = std::make_shared<const ScorePredictor>(
        network->empty() ? PredictorFileOf(model.file().path().string()) : *network,
        model.params());
  }
  const PackedFormats formats = compressor.packed_formats();
  for (int i = 0; i < geometry.layers; ++i) {
    for (const KvFormat format : formats.at(LayerId{i})) {
      const PageLayout fits(format, geometry);
    }
  }
  return compressor;
}

}  // namespace vericache
