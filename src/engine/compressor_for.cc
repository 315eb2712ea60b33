#include "engine/compressor_for.h"

#include <string>

#include "base/error.h"
#include "model/key_outliers.h"

namespace vericache {

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
  const PackedFormats formats = compressor.packed_formats();
  for (int i = 0; i < geometry.layers; ++i) {
    for (const KvFormat format : formats.at(LayerId{i})) {
      const PageLayout fits(format, geometry);
    }
  }
  return compressor;
}

}  // namespace vericache
