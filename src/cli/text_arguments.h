// The options of commands that learn something of a model from texts: calibrate and train.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/threads.h"
#include "model/tokenizer.h"

namespace vericache {

struct TextArguments {
  std::string model;
  std::vector<std::string> texts;
  std::string output;
  int threads = HardwareThreads();

  // `file`: what is written where --out is not given, "MODEL.kvzap.gguf". `tokens`, of which there
  // must be `least`, and `window` are options of what is learned.
  void AddTo(CLI::App& command, const std::string& file, int& tokens, int least, int& window);

  // The tokens of each text. Throws UserError where one cannot be read.
  std::vector<std::vector<TokenId>> Tokens(const Tokenizer& tokenizer) const;
};

}  // namespace vericache
