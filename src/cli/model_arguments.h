// The options that name a device, a model and what is served, of predict and simulate.
#pragma once

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "perfmodel/equations.h"

namespace vericache {

// Of a GGUF file. Throws UserError as GgufFile does.
ModelShape ShapeOfFile(const std::string& path);

struct ModelArguments {
  std::string device = "rtx-pro-6000";
  std::string shape;
  std::string model;
  int context = 32'000;
  double compression = 0.2;
  std::string draft_length = "25";
  std::string acceptance = "0.85";
  bool json = false;

  void AddTo(CLI::App& command);

  DeviceProfile Device() const { return FindDevice(device); }
  // Throws UserError where neither or both of --model-shape and --model are given.
  ModelShape Shape() const;
  // nullopt: the best one.
  std::optional<int> DraftLength() const;
  // --acceptance, a share at the draft length (at kPaperDraft where the best one is sought).
  AcceptanceModel Acceptance() const;

  // The draft length of the paper's headline figures.
  static constexpr int kPaperDraft = 25;
};

}  // namespace vericache
