// Profiles: what `vericache tune` found for a model, layer by layer, as a JSON file.
#pragma once

#include <string>
#include <vector>

#include "compressor/compressor.h"

namespace vericache {

struct Profile {
  std::string model;   // it was tuned for, for people
  std::string scorer;  // as in a compressor's name; "": nothing is dropped
  int residual = 0;
  std::vector<LayerRecipe> layers;
};

// The text of a profile's file:
//   {"model": "…", "scorer": "snapkv", "residual": 0,
//    "layers": [{"keep": 0.5, "keys": "kivi4", "values": "turboquant3"}, …]}
// A layer without "keys" and "values" stays plain; one with "low_keys", "low_values" and
// "high_share" is split.
std::string ToText(const Profile& profile);

// Throws UserError, naming the file, where there is none or it is not a profile.
Profile ReadProfile(const std::string& path);

}  // namespace vericache
