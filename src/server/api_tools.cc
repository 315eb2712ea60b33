#include "server/api_tools.h"

#include <utility>

namespace vericache {
namespace {

using json = nlohmann::ordered_json;

void ReadToolChoice(const Fields& fields, ApiRequest& request) {
  request.tool_choice = request.tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  if (fields.Find("parallel_tool_calls") != nullptr) {
    request.parallel_tool_calls = fields.Flag("parallel_tool_calls");
  }
  const json* choice = fields.Find("tool_choice");
  if (choice == nullptr) {
    return;
  }
  if (choice->is_object()) {
    const json* function = Fields(*choice, "tool_choice.").Object("function");
    const std::string name =
        function == nullptr ? ""
                            : Fields(*function, "tool_choice.function.").Text("name").value_or("");
    std::erase_if(request.tools, [&name](const Tool& tool) { return tool.name != name; });
  }
  const bool required = *choice == "required" || choice->is_object();
  if (required ? request.tools.empty() : *choice != "auto" && *choice != "none") {
    throw fields.Wrong("tool_choice", "must be none, auto, required, or name one of 'tools'");
  }
  if (required) {
    request.tool_choice = ToolChoice::kRequired;
  } else if (*choice == "none") {
    request.tool_choice = ToolChoice::kNone;
  }
}

}  // namespace

// {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema":
// …}}.
void ReadFormat(const Fields& fields, ApiRequest& request) {
  const json* format = fields.Object("response_format");
  if (format == nullptr) {
    return;
  }
  const Fields own(*format, "response_format.");
  const std::string type = own.Text("type").value_or("");
  if (type == "json_object") {
    request.schema = {{"type", "object"}};
  } else if (type == "json_schema") {
    const json* named = own.Object("json_schema");
    const json* schema = named == nullptr ? nullptr : Fields(*named).Object("schema");
    if (schema == nullptr) {
      throw own.Wrong("json_schema", "needs a 'schema'");
    }
    request.schema = *schema;
  } else if (type != "text") {
    throw own.Wrong("type", "must be text, json_object or json_schema");
  }
}

void ReadTools(const Fields& fields, ApiRequest& request) {
  const json* tools = fields.List("tools");
  for (std::size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const std::string at = "tools[" + std::to_string(i) + "].";
    if (!(*tools)[i].is_object()) {
      throw fields.Wrong("tools", "has an element that is no object");
    }
    const Fields tool((*tools)[i], at);
    const json* function = tool.Object("function");
    if (tool.Text("type").value_or("function") != "function" || function == nullptr) {
      throw tool.Wrong("type", "must be function, with a 'function'");
    }
    const Fields own(*function, at + "function.");
    const std::string name = own.Text("name").value_or("");
    if (name.empty()) {
      throw own.Wrong("name", "is missing");
    }
    const json* parameters = own.Object("parameters");
    request.tools.push_back({.name = name,
                             .description = own.Text("description").value_or(""),
                             .parameters = parameters == nullptr ? json::object() : *parameters});
  }
  ReadToolChoice(fields, request);
}

std::string CallsMadeBefore(const Fields& message, int& fields_left) {
  std::string text;
  const json* calls = message.List("tool_calls");
  for (std::size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    const json& call = (*calls)[i];
    const json* function = call.is_object() ? Fields(call).Object("function") : nullptr;
    if (function == nullptr) {
      throw message.Wrong("tool_calls", "has an element without 'function'");
    }
    const Fields own(*function, "function.");
    json arguments;
    try {
      arguments = ParseJson(own.Text("arguments").value_or("{}"), "a text", fields_left);
    } catch (const ApiError& error) {
      throw message.Wrong("tool_calls",
                          std::string("has arguments that cannot be read: ") + error.what());
    }
    const json written = {{"name", own.Text("name").value_or("")},
                          {"arguments", std::move(arguments)}};
    text += "\n<tool_call>\n" + written.dump() + "\n</tool_call>";
  }
  return text;
}

}  // namespace vericache
