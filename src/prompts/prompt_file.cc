#include "prompts/prompt_file.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>

#include "base/error.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

using nlohmann::json;

// What is wrong with a line, if anything, else empty; fills `prompt`.
std::string ParsePrompt(const json& object, PromptText& prompt) {
  if (!object.is_object()) {
    return "not a JSON object";
  }
  for (const auto& [key, value] : object.items()) {
    if (key == "id") {
      if (!value.is_string() && !value.is_number_integer()) {
        return "\"id\" is neither text nor a whole number";
      }
      prompt.id = value.is_string() ? value.get<std::string>() : value.dump();
    } else if (key == "prompt") {
      if (!value.is_string()) {
        return "\"prompt\" is not text";
      }
      prompt.text = value.get<std::string>();
    } else if (key == "max_tokens") {
      if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
          value.get<std::int64_t>() > std::numeric_limits<int>::max()) {
        return "\"max_tokens\" is not a whole number of at least 1";
      }
      prompt.max_tokens = value.get<int>();
    } else if (key == "messages") {
      if (!value.is_array() || value.empty()) {
        return "\"messages\" is not a list of messages";
      }
      for (const json& message : value) {
        if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
            !message.contains("content") || !message["content"].is_string()) {
          return "a message needs \"role\" and \"content\", both text";
        }
        prompt.messages.push_back({.role = message["role"].get<std::string>(),
                                   .content = message["content"].get<std::string>()});
      }
    } else {
      return "unknown field \"" + key + "\" (known: id, prompt, messages, max_tokens)";
    }
  }
  if (object.contains("prompt") == object.contains("messages")) {
    return "one of \"prompt\" and \"messages\" is needed";
  }
  return "";
}

}  // namespace

std::string ReadText(const std::string& path) {
  if (path == "-") {
    return {std::istreambuf_iterator<char>(std::cin), {}};
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UserError(path + ": is a folder, not a file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const bool missing = !std::filesystem::exists(path, error) && !error;
    throw UserError(path + (missing ? ": no such file" : ": cannot be read"));
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<PromptText> ReadPrompts(const std::string& path) {
  std::istringstream lines(ReadText(path));
  std::vector<PromptText> prompts;
  std::set<std::string> ids;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    PromptText prompt;
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string wrong =
        object.is_discarded() ? "not valid JSON" : ParsePrompt(object, prompt);
    if (!wrong.empty()) {
      throw UserError(path + ":" + std::to_string(number) + ": " + wrong);
    }
    if (prompt.id.empty()) {
      prompt.id = std::to_string(prompts.size());
    }
    if (!ids.insert(prompt.id).second) {
      throw UserError(path + ":" + std::to_string(number) + ": the id \"" + prompt.id +
                      "\" was used before");
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    throw UserError(path + ": no prompts in it");
  }
  return prompts;
}

std::vector<TokenId> EncodePrompt(const PromptText& prompt, bool chat, const Tokenizer& tokenizer) {
  if (prompt.messages.empty() && prompt.text.empty()) {
    throw UserError("the prompt is empty");
  }
  std::vector<ChatMessage> messages = prompt.messages;
  if (messages.empty() && chat) {
    messages.push_back({.role = "user", .content = prompt.text});
  }
  return tokenizer.Encode(messages.empty() ? prompt.text : tokenizer.ApplyChatTemplate(messages),
                          /*special=*/true);
}

}  // namespace vericache
