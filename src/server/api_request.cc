#include "server/api_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "server/api_tools.h"
#include "server/fields.h"

namespace vericache {
namespace {

using json = nlohmann::ordered_json;

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr int kMostAnswers = 128;
constexpr std::size_t kMostStops = 16;
constexpr int kMostLogprobs = 20;

std::vector<TokenId> Tokens(const json& list, const char* field) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (const json& token : list) {
    if (!token.is_number_integer() || token.get<std::int64_t>() < 0 ||
        token.get<std::int64_t>() > kMostTokens) {
      throw ApiError::Invalid("'" + std::string(field) + "' has an element that is no token id",
                              field);
    }
    tokens.push_back(TokenId{token.get<std::int32_t>()});
  }
  return tokens;
}

// A text, token ids, or a list of either.
std::vector<PromptInput> Prompts(const json* prompt) {
  if (prompt == nullptr) {
    throw ApiError::Invalid("'prompt' is missing", "prompt");
  }
  if (prompt->is_string()) {
    return {prompt->get<std::string>()};
  }
  if (prompt->is_array() && !prompt->empty()) {
    if (prompt->front().is_number()) {
      return {Tokens(*prompt, "prompt")};
    }
    std::vector<PromptInput> prompts;
    for (const json& each : *prompt) {
      if (each.is_string()) {
        prompts.emplace_back(each.get<std::string>());
      } else if (each.is_array()) {
        prompts.emplace_back(Tokens(each, "prompt"));
      } else {
        throw ApiError::Invalid("'prompt' must be text, token ids, or a list of one of them",
                                "prompt");
      }
    }
    return prompts;
  }
  throw ApiError::Invalid("'prompt' must be text, token ids, or a list of one of them", "prompt");
}

// Text, or parts of text; absent where an assistant's message has none.
std::string Content(const json& message, const std::string& field) {
  const json* content = Fields(message).Find("content");
  if (content == nullptr) {
    return "";
  }
  if (content->is_string()) {
    return content->get<std::string>();
  }
  std::string text;
  if (content->is_array()) {
    for (const json& part : *content) {
      const bool is_text = part.is_object() && part.value("type", json()) == "text" &&
                           part.contains("text") && part["text"].is_string();
      if (!is_text) {
        throw ApiError::Invalid("'" + field + "' has a part that is not text; only text is served",
                                field);
      }
      text += part["text"].get<std::string>();
    }
    return text;
  }
  throw ApiError::Invalid("'" + field + "' must be text, or a list of parts", field);
}

std::vector<ChatMessage> Messages(const json* list) {
  if (list == nullptr || list->empty()) {
    throw ApiError::Invalid("'messages' must be a list of messages", "messages");
  }
  std::vector<ChatMessage> messages;
  int fields_left = kMostFields;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string at = "messages[" + std::to_string(i) + "]";
    const json& message = (*list)[i];
    if (!message.is_object()) {
      throw ApiError::Invalid("'" + at + "' must be an object", at);
    }
    std::string role = Fields(message, at + ".").Text("role").value_or("");
    if (role == "developer") {
      role = "system";
    }
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      throw ApiError::Invalid(
          "'" + at + ".role' must be system, developer, user, assistant or tool", at + ".role");
    }
    std::string content = Content(message, at + ".content");
    if (role == "tool") {  // as models that call tools were taught
      role = "user";
      content = "<tool_response>\n" + content + "\n</tool_response>";
    }
    content += CallsMadeBefore(Fields(message, at + "."), fields_left);
    messages.push_back({.role = role, .content = std::move(content)});
  }
  return messages;
}

void ReadStop(const Fields& fields, ApiRequest& request) {
  const json* stop = fields.Find("stop");
  if (stop == nullptr) {
    return;
  }
  const json list = stop->is_string() ? json::array({*stop}) : *stop;
  if (!list.is_array() || list.size() > kMostStops) {
    throw fields.Wrong("stop", "must be text, or a list of at most " + std::to_string(kMostStops));
  }
  for (const json& each : list) {
    if (!each.is_string() || each.get_ref<const std::string&>().empty()) {
      throw fields.Wrong("stop", "has an element that is empty, or not text");
    }
    request.stop.push_back(each.get<std::string>());
  }
}

void ReadSampling(const Fields& fields, ApiRequest& request) {
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = fields.Number("temperature", 0.0, 100.0).value_or(1.0);
  sampling.top_p = fields.Number("top_p", 0.0, 1.0).value_or(1.0);
  // -1 says the same as 0 elsewhere.
  sampling.top_k = static_cast<int>(
      std::max<std::int64_t>(0, fields.Integer("top_k", -1, kMostTokens).value_or(0)));
  sampling.min_p = fields.Number("min_p", 0.0, 1.0).value_or(0.0);
  sampling.presence_penalty = fields.Number("presence_penalty", -2.0, 2.0).value_or(0.0);
  sampling.frequency_penalty = fields.Number("frequency_penalty", -2.0, 2.0).value_or(0.0);
  const auto seed = fields.Integer("seed", std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max());
  request.seeded = seed.has_value();
  sampling.seed = static_cast<std::uint64_t>(seed.value_or(0));
  try {
    ValidateSampling(sampling);
  } catch (const UserError& error) {
    throw ApiError::Invalid(error.what());
  }
}

void ReadLogprobs(const Fields& fields, ApiRequest& request) {
  if (!request.chat) {
    if (const auto count = fields.Integer("logprobs", 0, kMostLogprobs)) {
      request.logprobs = static_cast<int>(*count);
    }
    return;
  }
  const auto top = fields.Integer("top_logprobs", 0, kMostLogprobs);
  if (fields.Flag("logprobs")) {
    request.logprobs = static_cast<int>(top.value_or(0));
  } else if (top) {
    throw fields.Wrong("top_logprobs", "needs 'logprobs' to be true");
  }
}

void ReadExtension(const Fields& fields, ApiRequest& request) {
  const json* object = fields.Object("vericache");
  if (object == nullptr) {
    return;
  }
  const Fields own(*object, "vericache.");
  if (const auto name = own.Text("policy")) {
    request.policy = ParsePolicy(*name);
    if (!request.policy) {
      throw own.Wrong("policy", "must be one of " + PolicyNames());
    }
  }
  if (const auto length = own.Integer("draft_length", 0, kMostTokens)) {
    request.draft_length = static_cast<int>(*length);
  }
  request.drafts = own.Flag("drafts");
}

// What would change the answer, and is not served.
void RefuseOthers(const Fields& fields, const ApiRequest& request) {
  for (const char* name : {"suffix", "functions", "function_call", "audio", "logit_bias"}) {
    const json* value = fields.Find(name);
    if (value != nullptr && !((value->is_structured() || value->is_string()) && value->empty())) {
      throw fields.Wrong(name, "is not supported");
    }
  }
  if (fields.Flag("echo")) {
    throw fields.Wrong("echo", "is not supported");
  }
  if (const json* best = fields.Find("best_of"); best != nullptr && *best != request.n) {
    throw fields.Wrong("best_of", "is supported where it equals 'n'");
  }
}

ApiRequest Parse(std::string_view body, bool chat) {
  const json object = ParseBody(body);
  const Fields fields(object);
  ApiRequest request{.chat = chat};
  request.model = fields.Text("model").value_or("");
  if (chat) {
    request.messages = Messages(fields.List("messages"));
  } else {
    request.prompts = Prompts(fields.Find("prompt"));
  }
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto count = fields.Integer(name, 1, kMostTokens)) {
      request.max_tokens = static_cast<int>(*count);
    }
  }
  ReadSampling(fields, request);
  request.n = static_cast<int>(fields.Integer("n", 1, kMostAnswers).value_or(1));
  ReadStop(fields, request);
  request.stream = fields.Flag("stream");
  if (const json* options = fields.Object("stream_options")) {
    request.include_usage = Fields(*options, "stream_options.").Flag("include_usage");
    if (!request.stream) {
      throw fields.Wrong("stream_options", "needs 'stream' to be true");
    }
  }
  ReadLogprobs(fields, request);
  ReadExtension(fields, request);
  ReadFormat(fields, request);
  if (chat) {
    ReadTools(fields, request);
  }
  RefuseOthers(fields, request);
  return request;
}

}  // namespace

ApiRequest ParseCompletion(std::string_view body) { return Parse(body, /*chat=*/false); }

ApiRequest ParseChat(std::string_view body) { return Parse(body, /*chat=*/true); }

ApiRequest ParseTokenize(std::string_view body) {
  const json object = ParseBody(body);
  const Fields fields(object);
  ApiRequest request;
  request.chat = fields.Find("messages") != nullptr;
  if (request.chat) {
    request.messages = Messages(fields.List("messages"));
    return request;
  }
  const auto prompt = fields.Text("prompt");
  if (!prompt) {
    throw ApiError::Invalid("'prompt' or 'messages' is needed", "prompt");
  }
  request.prompts.emplace_back(*prompt);
  return request;
}

std::vector<TokenId> ParseDetokenize(std::string_view body) {
  const json object = ParseBody(body);
  const json* tokens = Fields(object).List("tokens");
  if (tokens == nullptr) {
    throw ApiError::Invalid("'tokens' is missing", "tokens");
  }
  return Tokens(*tokens, "tokens");
}

}  // namespace vericache
