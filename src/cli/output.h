#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json_text.h"
#include "engine/engine.h"
#include "model/tokenizer.h"
#include "nlohmann/json.hpp"

namespace vericache {

// A table for people: columns as wide as their widest cell.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// A number with so many digits after the point.
std::string Fixed(double value, int digits);

// A progress bar on standard error; where that is not a terminal, a line now and then.
class ProgressBar {
 public:
  ProgressBar();
  void Show(const std::string& what, int done, int total);
  void Clear();

 private:
  bool terminal_;
  bool shown_ = false;
  Clock::time_point told_ = Clock::now();
};

// The text of emitted tokens, without the token that ended it.
std::string TextOf(const Tokenizer& tokenizer, std::vector<TokenId> tokens);

// Writes all of `text` to standard output at once. Throws UserError where it cannot.
void WriteOut(const std::string& text);

// A result as `generate --json` prints it.
nlohmann::ordered_json ToJson(const Result& result, const std::string& text,
                              const EngineOptions& options, Bytes fast_memory_peak);

}  // namespace vericache
