#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

struct llama_model;
struct llama_vocab;

namespace vericache {

struct ChatMessage {
  std::string role;
  std::string content;
};

// A model's vocabulary and chat template, through libllama.
class Tokenizer {
 public:
  // Throws UserError where the file has no vocabulary that libllama knows.
  explicit Tokenizer(const std::filesystem::path& path);

  // Text to tokens, with the begin-of-sequence token where the model wants one. `special` also
  // recognizes control tokens written out in the text, as a chat template does.
  std::vector<TokenId> Encode(std::string_view text, bool special) const;

  // The bytes of one token; may end inside a UTF-8 character. Control tokens give nothing.
  std::string Piece(TokenId token) const;

  // True for tokens that end a generation.
  bool IsEnd(TokenId token) const;

  // The messages in the model's own chat template, up to where the assistant speaks. Throws
  // UserError where the model has no template or libllama does not know it.
  std::string ApplyChatTemplate(std::span<const ChatMessage> messages) const;

  const llama_vocab* vocabulary() const { return vocabulary_; }

 private:
  struct FreeModel {
    void operator()(llama_model* model) const;
  };

  std::filesystem::path path_;
  std::unique_ptr<llama_model, FreeModel> model_;
  const llama_vocab* vocabulary_;
};

// Collects the pieces of a text and hands on whole UTF-8 characters.
class TextStream {
 public:
  // What of the text so far, `piece` appended, is complete and was not yet handed on.
  std::string Add(std::string_view piece);
  // The rest; bytes that never became a character are replaced by U+FFFD.
  std::string Finish();

 private:
  std::string pending_;
};

// The text of all tokens; bytes that make no character are replaced by U+FFFD.
std::string TextOfTokens(const Tokenizer& tokenizer, std::span<const TokenId> tokens);

}  // namespace vericache
