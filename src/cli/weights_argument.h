// --weights, of all commands that load a model.
#pragma once

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "ggml.h"

namespace vericache {

struct WeightsArgument {
  std::string text = "as-is";

  void AddTo(CLI::App& command);

  // What ModelOptions::weights takes. Throws UserError, listing the known ones.
  std::optional<ggml_type> type() const;
};

}  // namespace vericache
