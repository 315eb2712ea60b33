#pragma once

#include <string_view>

#include "compressor/compressor.h"
#include "model/model.h"

namespace vericache {

// MakeCompressor for a model: in layers whose keys have outlier channels, formats that such keys
// would break give way, see ProtectOutlierKeys. KVQuant formats get their calibration: from the
// file that the name gives, or else from the one beside the model, see CalibrationFileOf; without
// one their levels are a normal distribution's and ranges of key channels those of each prompt.
// Throws UserError as MakeCompressor and ReadCalibration do, and where the model has other layers
// than a profile, or heads that do not fit a format.
Compressor CompressorFor(std::string_view name, const Model& model);

}  // namespace vericache
