#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer.h"

namespace vericache {

// How many bytes at the end of a text may be the beginning of `word`, which is not empty: less than
// all of it.
std::size_t BegunAtEnd(std::string_view text, std::string_view word);

// The text that tokens make, up to the first stop string, which is not part of
// it.
class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stop)
      : tokenizer_(&tokenizer), stop_(std::move(stop)) {}

  // Appends a token. True once a stop string is complete; then nothing is
  // appended any more.
  bool Add(TokenId token);

  // No more tokens come.
  void Finish();

  // What was not taken yet, in whole characters. What may be the beginning of a
  // stop string waits until it is known not to be one.
  std::string Take();

  bool stopped() const { return stopped_; }

 private:
  bool FindStop();

  const Tokenizer* tokenizer_;
  std::vector<std::string> stop_;
  TextStream stream_;
  std::string pending_;
  bool stopped_ = false;
  bool finished_ = false;
};

}  // namespace vericache
