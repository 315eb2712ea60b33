// What `vericache calibrate kvquant` found for a model, layer by layer, as a JSON file.
#pragma once

#include <string>
#include <vector>

#include "kvcache/kvquant.h"

namespace vericache {

struct KvQuantCalibration {
  std::string model;            // it was made for, for people
  std::vector<KvQuant> layers;  // levels and ranges of key channels
};

// Where a model's calibration is looked for where no other file is named.
std::string CalibrationFileOf(const std::string& model_path);

// The text of a calibration's file, a layer a line:
//   {"model": "…", "layers": [{"key_levels": [[…], [… ], […]], "value_levels": […],
//    "key_centers": […], "key_halves": […]}, …]}
// Levels are those of 2, 3 and 4 bits, times 127; centers and half ranges [kv_head][channel].
std::string ToText(const KvQuantCalibration& calibration);

// Throws UserError, naming the file and how one is made, where there is none, or it is none for
// such a model.
KvQuantCalibration ReadCalibration(const std::string& path, const CacheGeometry& geometry);

}  // namespace vericache
