// The options of the engine, of generate and bench.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/weights_argument.h"
#include "engine/engine.h"
#include "model/tokenizer.h"

namespace vericache {

struct EngineArguments {
  EngineOptions options;
  WeightsArgument weights;
  std::string draft_length = "16";
  std::string fast_memory;
  std::string full_store = "memory";
  std::string link_bandwidth;
  std::string prefixes;

  EngineArguments();

  // All but --policy and --batch, which each command has in its own way.
  void AddTo(CLI::App& command);

  // Fills `options` from the texts and looks at all of them; before a model is loaded. Throws
  // UserError.
  void Resolve();

  // What depends on the model, and on the memory that it leaves once it is loaded, and is opened
  // only then. Throws UserError.
  void ResolveRest(const Tokenizer& tokenizer);
};

// Throws UserError, listing the known ones.
std::vector<Policy> PoliciesOf(const std::vector<std::string>& names);
Policy PolicyOf(const std::string& name);

}  // namespace vericache
