#pragma once

#include <string_view>

#include "compressor/compressor.h"
#include "model/model.h"

namespace vericache {

// MakeCompressor for a model: in layers whose keys have outlier channels, formats that such keys
// would break give way, see ProtectOutlierKeys. Throws UserError as MakeCompressor does, and where
// the model has other layers than a profile, or heads that do not fit a format.
Compressor CompressorFor(std::string_view name, const Model& model);

}  // namespace vericache
