// Answers of a shape: JSON by a schema, calls of tools; and the drafts of who asks for them.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/answer_format.h"
#include "server/api_error.h"
#include "server/served.h"

namespace vericache {
namespace {

const Json kPoint = {{"type", "object"},
                     {"properties",
                      {{"kind", {{"enum", {"a", "b"}}}},
                       {"size", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}},
                     {"required", {"kind", "size"}},
                     {"additionalProperties", false}};
const Json kTools = {
    {{"type", "function"}, {"function", {{"name", "first"}, {"parameters", kPoint}}}},
    {{"type", "function"}, {"function", {{"name", "second"}, {"description", "does it"}}}}};

Json Chat(const Json& more) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "Do it."}}}},
               {"max_tokens", 500},
               {"seed", 3},
               {"temperature", 1}};
  body.update(more);
  return body;
}

void ExpectPoint(const Json& point) {
  EXPECT_TRUE(point["kind"] == "a" || point["kind"] == "b") << point;
  EXPECT_TRUE(point["size"].is_number_integer() && point["size"] >= 0 && point["size"] <= 99)
      << point;
}

TEST(ServerFormat, AnswersFollowASchemaAndAreTheFullCaches) {
  const Json body =
      Chat({{"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "point"}, {"schema", kPoint}}}}}});
  const Served served(VeriCacheOptions("kivi2", 1.0, 6));
  EngineOptions options = VeriCacheOptions("none", 1.0, 6);
  options.policy = Policy::kFull;
  const Served full(options);
  for (const double temperature : {0.0, 1.0}) {
    Json own = body;
    own["temperature"] = temperature;
    const Json choice = served.Post("/v1/chat/completions", own)["choices"][0];
    ExpectPoint(Json::parse(choice["message"]["content"].get<std::string>()));
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(full.Post("/v1/chat/completions", own)["choices"][0]["message"], choice["message"]);
  }
  const Json bad =
      served.Post("/v1/chat/completions",
                  Chat({{"response_format",
                         {{"type", "json_schema"},
                          {"json_schema", {{"schema", {{"$ref", "http://elsewhere/schema"}}}}}}}}),
                  400);
  EXPECT_EQ(bad["error"]["param"], "response_format");
}

TEST(ServerFormat, CallsTheToolThatItMust) {
  const Served served(VeriCacheOptions("kivi2", 1.0, 6));
  const Json body =
      Chat({{"tools", kTools},
            {"tool_choice", {{"type", "function"}, {"function", {{"name", "first"}}}}},
            {"parallel_tool_calls", false}});
  const Json choice = served.Post("/v1/chat/completions", body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U) << choice;
  const Json& function = choice["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(function["name"], "first");
  ExpectPoint(Json::parse(function["arguments"].get<std::string>()));

  const std::vector<Json> events = served.Stream("/v1/chat/completions", body);
  const Json& last = events.back()["choices"][0];
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  EXPECT_EQ(last["delta"]["tool_calls"][0]["function"], function);
  EXPECT_EQ(last["delta"]["tool_calls"][0]["index"], 0);
  for (std::size_t i = 1; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["choices"][0]["delta"].value("content", ""), "") << "no text streams";
  }
}

TEST(ServerFormat, StreamsDraftsToThoseWhoAsk) {
  const Served served(VeriCacheOptions("kivi4", 1.0, 6));
  const Json body = Chat({{"vericache", {{"drafts", true}}}, {"max_tokens", 40}});
  std::string text;
  int drafted = 0;
  for (const Json& event : served.Stream("/v1/chat/completions", body)) {
    const Json& choice = event["choices"][0];
    text += choice["delta"].value("content", "");
    drafted += choice.contains("vericache") && choice["vericache"].contains("drafted") ? 1 : 0;
  }
  EXPECT_GT(drafted, 0);
  EXPECT_EQ(text, served.Post("/v1/chat/completions", body)["choices"][0]["message"]["content"]);
}

TEST(ServerFormat, HasAPageThatNeedsNothingElse) {
  const Served served;
  const auto page = served.Client().Get("/");
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_NE(page->body.find("<title>VeriCache</title>"), std::string::npos);
  EXPECT_EQ(page->body.find("http://"), std::string::npos);
  EXPECT_EQ(page->body.find("https://"), std::string::npos);
  served.Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 3}});
  const Json recent = Json::parse(served.Client().Get("/recent")->body);
  EXPECT_EQ(recent.at(0)["tokens"], 3);
}

TEST(AnswerFormat, FindsCallsInAText) {
  const Calls none = CallsOf("a <tool_call> b");
  EXPECT_TRUE(none.calls.empty());
  EXPECT_EQ(none.text, "a <tool_call> b");
  const Calls two = CallsOf(
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"
      "<tool_call>{\"name\": \"g\"}</tool_call>");
  ASSERT_EQ(two.calls.size(), 2U);
  EXPECT_EQ(two.text, "");
  EXPECT_EQ(two.calls[0].name, "f");
  EXPECT_EQ(two.calls[0].arguments, "{\"x\":1}");
  EXPECT_EQ(two.calls[1].arguments, "{}");
  const Calls mixed =
      CallsOf("well <tool_call>{\"name\": \"g\"}</tool_call><tool_call>no</tool_call>");
  EXPECT_EQ(mixed.calls.size(), 1U);
  EXPECT_EQ(mixed.text, "well <tool_call>no</tool_call>");
}

TEST(AnswerFormat, TellsTheModelOfItsTools) {
  const ApiRequest request = ParseChat(Chat({{"tools", kTools}}).dump());
  EXPECT_EQ(request.tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(GrammarOf(request), "");
  const std::vector<ChatMessage> messages = MessagesOf(request);
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_NE(messages[0].content.find("does it"), std::string::npos);
  EXPECT_EQ(MessagesOf(ParseChat(Chat({{"tools", kTools}, {"tool_choice", "none"}}).dump())).size(),
            1U);
  const ApiRequest after = ParseChat(
      R"({"messages": [{"role": "user", "content": "x"},
          {"role": "assistant", "content": null, "tool_calls": [
             {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
          {"role": "tool", "tool_call_id": "1", "content": "7"}]})");
  EXPECT_EQ(after.messages[1].content,
            "\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>");
  EXPECT_EQ(after.messages[2].role, "user");
  EXPECT_EQ(after.messages[2].content, "<tool_response>\n7\n</tool_response>");
  for (const Json& choice : {Json("must"), Json{{"function", {{"name", "third"}}}}, Json(1)}) {
    EXPECT_THROW(ParseChat(Chat({{"tools", kTools}, {"tool_choice", choice}}).dump()), ApiError)
        << choice;
  }
  EXPECT_THROW(ParseChat(Chat({{"tools", {{{"type", "function"}}}}}).dump()), ApiError);
}

// What a model writes is no call where it is not JSON that a request might have.
TEST(AnswerFormat, FindsNoCallThatIsNestedTooDeeply) {
  const std::string text =
      "<tool_call>{\"name\": \"f\", \"arguments\": " + std::string(200'000, '[') +
      std::string(200'000, ']') + "}</tool_call>";
  const Calls calls = CallsOf(text);
  EXPECT_TRUE(calls.calls.empty());
  EXPECT_EQ(calls.text, text);
}

// A tool's parameters are a document of their own: what they refer to is in them.
TEST(AnswerFormat, ToolsHaveDefinitionsOfTheirOwn) {
  const auto tool = [](const std::string& name, const std::string& type) {
    return Json{{"type", "function"},
                {"function",
                 {{"name", name},
                  {"parameters",
                   {{"type", "object"},
                    {"properties", {{"p", {{"$ref", "#/$defs/P"}}}}},
                    {"$defs", {{"P", {{"type", type}}}}}}}}}};
  };
  const ApiRequest request = ParseChat(
      Chat({{"tools", {tool("f", "integer"), tool("g", "null")}}, {"tool_choice", "required"}})
          .dump());
  const std::string rules = GrammarOf(request);
  EXPECT_NE(rules.find("integer ::="), std::string::npos) << rules;
  EXPECT_NE(rules.find("null ::="), std::string::npos) << rules;
}

std::string RulesOf(const Json& schema) {
  return GrammarOf(ParseChat(
      Chat({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}})
          .dump()));
}

// `schema`, in a list of one or two types each, so many times.
Json ListsOf(Json schema, int times, int types) {
  for (int i = 0; i < times; ++i) {
    schema = {{"type", std::vector<std::string>(static_cast<std::size_t>(types), "array")},
              {"items", std::move(schema)}};
  }
  return schema;
}

Json ObjectOf(int properties, const Json& each) {
  Json all = Json::object();
  for (int i = 0; i < properties; ++i) {
    all["field" + std::to_string(i)] = each;
  }
  return {{"type", "object"}, {"properties", all}};
}

TEST(AnswerFormat, TakesTheSchemasOfEverydayLife) {
  const Json text = {{"type", "string"},
                     {"description", std::string(300, 'x')},
                     {"maxLength", 500},
                     {"pattern", "^[A-Z]{2}-[0-9]{1,6}$"}};
  Json large = ObjectOf(10, ObjectOf(12, text));
  large["properties"]["country"] = {{"enum", std::vector<std::string>(250, "somewhere")}};
  EXPECT_NE(RulesOf(large), "");
  EXPECT_NE(RulesOf(ListsOf(text, 20, 1)), "");
  const Json tree = {{"$ref", "#/$defs/node"},
                     {"$defs",
                      {{"node",
                        {{"type", "object"},
                         {"properties",
                          {{"left", {{"$ref", "#/$defs/node"}}},
                           {"value", {{"allOf", {{{"$ref", "#/$defs/value"}}}}}}}}}},
                       {"value", ObjectOf(3, text)}}}};
  EXPECT_NE(RulesOf(tree), "");
}

// A pattern, or a text, is not what it looks like.
TEST(AnswerFormat, TakesTextsThatLookLikeRepetitions) {
  const Json enumeration = {{"enum", {"{5,3}", "\"{5,3}", "\\", "[\\{5,3}]"}}};
  EXPECT_NE(RulesOf(enumeration), "");
  EXPECT_NE(RulesOf({{"type", "string"}, {"pattern", "^[^\"{5,3}]{3,5}a{2}b{7,}$"}}), "");
}

// The converter would take minutes or gigabytes for each of them, or leave its stack.
TEST(AnswerFormat, RefusesSchemasThatCostTooMuch) {
  const Json null = {{"type", "null"}};
  Json chain = {{"$ref", "#/list/0"}};
  for (int i = 0; i < 3000; ++i) {
    chain["list"].push_back({{"$ref", "#/list/" + std::to_string(i + 1)}});
  }
  chain["list"].push_back(null);
  Json doubling = {{"$ref", "#/level0"}, {"level25", null}};
  for (int i = 0; i < 25; ++i) {
    doubling["level" + std::to_string(i)] =
        ObjectOf(2, {{"allOf", {{{"$ref", "#/level" + std::to_string(i + 1)}}}}});
  }
  Json parts = {{"many", ObjectOf(100, null)}};
  for (int i = 0; i < 2; ++i) {
    parts["allOf"].push_back({{"anyOf", {{{"$ref", "#/many"}}}}});
  }
  Json same = {{"list", {ObjectOf(100, null)}}};
  for (int i = 0; i < 90; ++i) {
    same["anyOf"].push_back({{"$ref", "#/list/0" + std::string(static_cast<std::size_t>(i), 'x')}});
  }
  const Json schemas[] = {
      ListsOf(null, 28, 2),
      ObjectOf(1000, null),
      ObjectOf(100, ObjectOf(40, null)),
      {{"type", "object"}, {"properties", {{std::string(200'000, ' '), null}}}},
      {{"$ref", "#/" + std::string(200'000, ' ')}, {std::string(200'000, ' '), null}},
      {{"enum", std::vector<int>(100'000, 7)}},
      {{"type", "string"}, {"pattern", "^" + std::string(200'000, 'a') + "{2000}$"}},
      ObjectOf(120, ObjectOf(5, {{"type", "string"}, {"minLength", 1}, {"maxLength", 1999}})),
      {{"allOf", {{{"$ref", "#/a"}}}}, {"a", {{"$ref", "#/a"}}}},
      {{"$ref", "#/node"}, {"node", ObjectOf(1, {{"allOf", {{{"$ref", "#/node"}}}}})}},
      {{"$ref", "#/nowhere"}},
      {{"type", "string"}, {"minLength", 5}, {"maxLength", 3}},
      {{"type", "string"}, {"minLength", 5}, {"maxLength", 0}},
      {{"type", "string"}, {"pattern", "^a{5,3}$"}},
      {{"type", "array"}, {"items", null}, {"minItems", 70}, {"maxItems", 60}},
      {{"anyOf", {{{"type", "string"}, {"pattern", "^[\"\\]]\"(a|b){100,3}$"}}, null}}},
      chain,
      doubling,
      parts,
      same,
  };
  for (const Json& schema : schemas) {
    try {
      RulesOf(schema);
      ADD_FAILURE() << "taken: " << schema.dump().substr(0, 100);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      EXPECT_EQ(error.ToJson()["error"]["param"], "response_format");
    }
  }
}

}  // namespace
}  // namespace vericache
