// Answers of a shape: JSON by a schema, and calls of tools.
#pragma once

#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "server/api_request.h"

namespace vericache {

// The rules of the answers that a request allows, for Grammar; empty where it allows all. Throws
// ApiError where a schema says what no rule can.
std::string GrammarOf(const ApiRequest& request);

// The messages, with what the model must know of the tools.
std::vector<ChatMessage> MessagesOf(const ApiRequest& request);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
};

// What an answer calls, and what of its text is left.
struct Calls {
  std::vector<ToolCall> calls;
  std::string text;
};
Calls CallsOf(const std::string& text);

// Where the calls of an answer may begin. What comes before it can be streamed as text.
inline constexpr const char* kCallBegins = "<tool_call>";

}  // namespace vericache
