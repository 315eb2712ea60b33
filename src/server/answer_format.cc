#include "server/answer_format.h"

#include <utility>

#include "llama-grammar/json-schema-to-grammar.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/schema_limits.h"

namespace vericache {
namespace {

using json = nlohmann::ordered_json;

constexpr const char* kCallEnds = "</tool_call>";

// By llama.cpp's converter.
std::string RulesOf(const json& schema, const char* field) {
  CheckSchema(schema, field);
  std::string rules;
  try {
    rules = json_schema_to_grammar(common_json::parse(schema.dump()));
  } catch (const std::exception& error) {
    throw ApiError::Invalid("the JSON schema is not supported: " + std::string(error.what()),
                            field);
  }
  CheckRules(rules, field);
  return rules;
}

// A schema becomes part of another one, at `place`: what it refers to is there now, too.
void MoveRefs(json& schema, const std::string& place) {
  if (schema.is_object()) {
    const auto ref = schema.find("$ref");
    if (ref != schema.end() && ref->is_string() && ref->get<std::string>().starts_with("#/")) {
      *ref = place + ref->get<std::string>().substr(1);
    }
  }
  if (schema.is_structured()) {
    for (json& each : schema) {
      MoveRefs(each, place);
    }
  }
}

std::string GrammarOfCalls(const ApiRequest& request) {
  json any = json::array();
  for (const Tool& tool : request.tools) {
    json arguments = tool.parameters;
    MoveRefs(arguments, "#/anyOf/" + std::to_string(any.size()) + "/properties/arguments");
    if (!arguments.contains("type") && !arguments.contains("$ref")) {
      arguments["type"] = "object";
    }
    any.push_back({{"type", "object"},
                   {"properties", {{"name", {{"const", tool.name}}}, {"arguments", arguments}}},
                   {"required", {"name", "arguments"}},
                   {"additionalProperties", false}});
  }
  std::string rules = "\n" + RulesOf({{"anyOf", any}}, "tools");
  const std::string root = "\nroot ::=";
  rules.replace(rules.find(root), root.size(), "\none-call ::=");
  const std::string call = "\"<tool_call>\\n\" one-call \"\\n</tool_call>\"";
  return "root ::= call" + std::string(request.parallel_tool_calls ? " (\"\\n\" call)*" : "") +
         "\ncall ::= " + call + rules;
}

// What a model wrote as a call; null where it cannot be read.
json CallOf(const std::string& text) {
  try {
    int fields_left = kMostFields;
    return ParseJson(text, "the call", fields_left);
  } catch (const ApiError&) {
    return {};
  }
}

}  // namespace

std::string GrammarOf(const ApiRequest& request) {
  if (request.tool_choice == ToolChoice::kRequired) {
    return GrammarOfCalls(request);
  }
  return request.schema.is_null() ? "" : RulesOf(request.schema, "response_format");
}

std::vector<ChatMessage> MessagesOf(const ApiRequest& request) {
  std::vector<ChatMessage> messages = request.messages;
  if (request.tool_choice == ToolChoice::kNone) {
    return messages;
  }
  std::string text =
      "You can call functions. Each line within <tools></tools> describes one, its parameters by a "
      "JSON schema.\n<tools>\n";
  for (const Tool& tool : request.tools) {
    text += json({{"type", "function"},
                  {"function",
                   {{"name", tool.name},
                    {"description", tool.description},
                    {"parameters", tool.parameters}}}})
                .dump() +
            "\n";
  }
  text +=
      "</tools>\nTo call one, answer with nothing but these three lines, once for each call:\n"
      "<tool_call>\n{\"name\": NAME, \"arguments\": {ARGUMENTS}}\n</tool_call>";
  if (messages.front().role == "system") {
    messages.front().content += "\n\n" + text;
  } else {
    messages.insert(messages.begin(), {.role = "system", .content = text});
  }
  return messages;
}

Calls CallsOf(const std::string& text) {
  Calls found;
  std::size_t from = 0;
  while (true) {
    const std::size_t begin = text.find(kCallBegins, from);
    const std::size_t end = begin == std::string::npos ? begin : text.find(kCallEnds, begin);
    if (end == std::string::npos) {
      found.text += text.substr(from);
      break;
    }
    const std::size_t inside = begin + std::string_view(kCallBegins).size();
    const json call = CallOf(text.substr(inside, end - inside));
    const std::size_t after = end + std::string_view(kCallEnds).size();
    if (call.is_object() && call.contains("name") && call["name"].is_string()) {
      found.text += text.substr(from, begin - from);
      found.calls.push_back(
          {.name = call["name"], .arguments = call.value("arguments", json::object()).dump()});
    } else {
      found.text += text.substr(from, after - from);
    }
    from = after;
  }
  if (!found.calls.empty() && found.text.find_first_not_of(" \n") == std::string::npos) {
    found.text.clear();
  }
  return found;
}

}  // namespace vericache
