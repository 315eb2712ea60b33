#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer.h"

namespace vericache {

// A prompt as the user gave it.
struct PromptText {
  std::string id;
  std::vector<ChatMessage> messages;  // if not empty, these are the prompt
  std::string text;
  std::optional<int> max_tokens;
};

// The whole of a file; "-" is standard input. Throws UserError where it cannot be read.
std::string ReadText(const std::string& path);

// Reads a file with one JSON object a line: "prompt" (text) or "messages" (a list of objects with
// "role" and "content"), and optionally "id" and "max_tokens". Empty lines are skipped. Throws
// UserError that names file and line where one is malformed or has another field.
std::vector<PromptText> ReadPrompts(const std::string& path);

// The prompt's tokens: messages in the model's chat template, and a text, where `chat`, as a
// message of the user in it. Control tokens that are written out are taken for such. Throws
// UserError where it is empty, or the model has no template.
std::vector<TokenId> EncodePrompt(const PromptText& prompt, bool chat, const Tokenizer& tokenizer);

}  // namespace vericache
