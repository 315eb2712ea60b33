// The bodies of requests, as OpenAI's API has them: JSON in, what is asked for
// out. No model is needed for it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/types.h"
#include "model/tokenizer.h"
#include "nlohmann/json.hpp"
#include "sampling/sampler.h"
#include "scheduler/policy.h"

namespace vericache {

// A text, or tokens.
using PromptInput = std::variant<std::string, std::vector<TokenId>>;

// A function that the model may call.
struct Tool {
  std::string name;
  std::string description;
  nlohmann::ordered_json parameters;  // a JSON schema
};

enum class ToolChoice { kNone, kAuto, kRequired };

struct ApiRequest {
  bool chat = false;
  std::string model;                  // empty: not named
  std::vector<PromptInput> prompts;   // of a completion
  std::vector<ChatMessage> messages;  // of a chat
  std::optional<int> max_tokens;
  SamplingOptions sampling{.temperature = 1.0};
  bool seeded = false;  // sampling.seed was given
  int n = 1;            // answers for each prompt
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;
  std::optional<int> logprobs;  // of each token, with so many of the most likely ones
  // What the answer must satisfy; null: nothing.
  nlohmann::ordered_json schema;
  std::vector<Tool> tools;  // that it may call, or must
  ToolChoice tool_choice = ToolChoice::kNone;
  bool parallel_tool_calls = true;
  // The extension object `vericache`.
  std::optional<Policy> policy;
  std::optional<int> draft_length;
  bool drafts = false;  // stream what is drafted, too
};

// Throw ApiError: 400, naming the field. Fields that would change the answer
// and are not served are refused; unknown ones are passed over.
ApiRequest ParseCompletion(std::string_view body);
ApiRequest ParseChat(std::string_view body);

// Of /v1/tokenize: {"prompt": text} or {"messages": [...]}; of /v1/detokenize:
// {"tokens": [...]}.
ApiRequest ParseTokenize(std::string_view body);
std::vector<TokenId> ParseDetokenize(std::string_view body);

}  // namespace vericache
