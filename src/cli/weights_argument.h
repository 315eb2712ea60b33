// --weights, of all commands that load a model.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "model/weight_form.h"

namespace vericache {

struct WeightsArgument {
  std::string text = "packed";

  void AddTo(CLI::App& command);

  // What ModelOptions::weights takes. Throws UserError, listing the known ones. For `auto` it is
  // measured, said on standard error, and remembered for this model and processor, so that every
  // run has the same: in weights/ below VERICACHE_CACHE, or ~/.cache/vericache.
  WeightForm For(const std::string& model, int threads) const;
};

}  // namespace vericache
