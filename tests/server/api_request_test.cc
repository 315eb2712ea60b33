// What bodies are taken for, and which are refused, by which field.
#include "server/api_request.h"

#include <string>

#include "gtest/gtest.h"
#include "server/api_error.h"

namespace vericache {
namespace {

std::string Completion(const std::string& rest) { return R"({"prompt": "x", )" + rest + "}"; }
std::string Chat(const std::string& rest) {
  return R"({"messages": [{"role": "user", "content": "x"}], )" + rest + "}";
}

TEST(ApiRequest, HasEveryField) {
  const ApiRequest request = ParseCompletion(Completion(
      R"("model": "m", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
         "seed": -3, "n": 2, "stop": ["a", "b"], "stream": true,
         "stream_options": {"include_usage": true}, "logprobs": 3, "presence_penalty": 1,
         "frequency_penalty": -1, "user": "somebody", "best_of": 2, "logit_bias": {},
         "vericache": {"policy": "full", "draft_length": 4, "drafts": true})"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "x");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.presence_penalty, 1.0);
  EXPECT_EQ(request.sampling.frequency_penalty, -1.0);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_TRUE(request.seeded);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.logprobs, 3);
  EXPECT_EQ(request.policy, Policy::kFull);
  EXPECT_EQ(request.draft_length, 4);
  EXPECT_TRUE(request.drafts);
}

TEST(ApiRequest, HasDefaultsAndTakesNullForAbsent) {
  for (const char* rest : {R"("user": 1)", R"("temperature": null, "stop": null, "seed": null,
                                              "max_tokens": null, "tools": null, "n": null)"}) {
    const ApiRequest request = ParseChat(Chat(rest));
    EXPECT_TRUE(request.chat);
    EXPECT_EQ(request.messages.at(0).content, "x");
    EXPECT_EQ(request.sampling, (SamplingOptions{.temperature = 1.0}));
    EXPECT_FALSE(request.seeded);
    EXPECT_EQ(request.max_tokens, std::nullopt);
    EXPECT_EQ(request.n, 1);
    EXPECT_FALSE(request.stream);
  }
}

TEST(ApiRequest, PromptsAreTextsOrTokens) {
  EXPECT_EQ(ParseCompletion(R"({"prompt": ["a", "b"]})").prompts.size(), 2U);
  const ApiRequest tokens = ParseCompletion(R"({"prompt": [1, 2]})");
  EXPECT_EQ(std::get<1>(tokens.prompts.at(0)), (std::vector<TokenId>{TokenId{1}, TokenId{2}}));
  EXPECT_EQ(ParseCompletion(R"({"prompt": [[1], [2, 3]]})").prompts.size(), 2U);
}

TEST(ApiRequest, MessagesAreTextOrParts) {
  const ApiRequest request = ParseChat(
      R"({"messages": [{"role": "developer", "content": "a"},
                       {"role": "user", "content": [{"type": "text", "text": "b"},
                                                    {"type": "text", "text": "c"}]},
                       {"role": "assistant", "content": null}]})");
  EXPECT_EQ(request.messages.at(0).role, "system");
  EXPECT_EQ(request.messages.at(1).content, "bc");
  EXPECT_EQ(request.messages.at(2).content, "");
}

// Which field a refused body names; empty where it names none.
std::string ParamOf(const std::string& body, bool chat) {
  try {
    chat ? ParseChat(body) : ParseCompletion(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const auto json = error.ToJson()["error"];
    EXPECT_EQ(json["type"], "invalid_request_error");
    EXPECT_FALSE(json["message"].get<std::string>().empty());
    return json["param"].is_null() ? "" : json["param"].get<std::string>();
  }
  return "no error";
}

TEST(ApiRequest, RefusesByField) {
  const std::pair<const char*, const char*> fields[] = {
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": -1)", "temperature"},
      {R"("temperature": 1e400)", ""},
      {R"("top_p": 1.5)", "top_p"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("n": 0)", "n"},
      {R"("n": 1000)", "n"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 99999999999)", "max_tokens"},
      {R"("max_completion_tokens": "many")", "max_completion_tokens"},
      {R"("stop": [""])", "stop"},
      {R"("stop": [1])", "stop"},
      {R"("stop": {})", "stop"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("presence_penalty": 3)", "presence_penalty"},
      {R"("logit_bias": {"5": 100})", "logit_bias"},
      {R"("model": 7)", "model"},
      {R"("vericache": [])", "vericache"},
      {R"("vericache": {"policy": "best"})", "vericache.policy"},
      {R"("vericache": {"draft_length": -1})", "vericache.draft_length"},
  };
  for (const auto& [rest, param] : fields) {
    EXPECT_EQ(ParamOf(Completion(rest), false), param) << rest;
    EXPECT_EQ(ParamOf(Chat(rest), true), param) << rest;
  }
  EXPECT_EQ(ParamOf(Chat(R"("top_logprobs": 2)"), true), "top_logprobs");
  EXPECT_EQ(ParamOf(Chat(R"("logprobs": 2)"), true), "logprobs");
  EXPECT_EQ(ParamOf(Completion(R"("echo": true)"), false), "echo");
  EXPECT_EQ(ParamOf(Completion(R"("suffix": "x")"), false), "suffix");
  for (const char* prompt : {"null", "7", "[]", "[1, \"x\"]", "[-1]", "[1.5]", "{}", "[null]"}) {
    EXPECT_EQ(ParamOf(std::string(R"({"prompt": )") + prompt + "}", false), "prompt") << prompt;
  }
  const std::pair<const char*, const char*> messages[] = {
      {"null", "messages"},
      {"[]", "messages"},
      {"{}", "messages"},
      {"[7]", "messages[0]"},
      {R"([{"role": "god", "content": "x"}])", "messages[0].role"},
      {R"([{"role": "user", "content": 7}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content"},
  };
  for (const auto& [list, param] : messages) {
    EXPECT_EQ(ParamOf(std::string(R"({"messages": )") + list + "}", true), param) << list;
  }
}

std::string WithArguments(const std::string& arguments) {
  const nlohmann::json call = {{"function", {{"name", "f"}, {"arguments", arguments}}}};
  const nlohmann::json message = {{"role", "assistant"}, {"content", nullptr}};
  nlohmann::json body = {{"messages", {message, message, message}}};
  for (nlohmann::json& each : body["messages"]) {
    each["tool_calls"] = {call};
  }
  return body.dump();
}

// The arguments of calls are JSON in a text, and have the limits of a body, too.
TEST(ApiRequest, LimitsWhatIsInArguments) {
  const auto param = [](const std::string& arguments) {
    return ParamOf(WithArguments(arguments), true);
  };
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  const auto fields = [](int count) {
    nlohmann::json object = nlohmann::json::object();
    for (int i = 0; i < count; ++i) {
      object[std::to_string(i)] = i;
    }
    return object.dump();
  };
  EXPECT_EQ(param(nested(60)), "no error");
  EXPECT_EQ(param(fields(3000)), "no error");
  for (const std::string& arguments :
       {nested(65), nested(200'000), fields(4000), std::string("{"), std::string("nonsense")}) {
    EXPECT_TRUE(param(arguments).ends_with("].tool_calls")) << arguments.substr(0, 40);
  }
}

// Reading takes time in proportion to the body: a list of a million objects is no more than large.
TEST(ApiRequest, LongListsAreReadAtOnce) {
  std::string body = "{\"prompt\": [{}";
  for (int i = 0; i < 1'000'000; ++i) {
    body += ",{}";
  }
  EXPECT_EQ(ParamOf(body + "]}", false), "prompt");
}

TEST(ApiRequest, RefusesWhatIsNoObject) {
  const std::string deep(100'000, '[');
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("nonsense"),
        std::string("{\"prompt\": \"\xff\xfe\"}"), std::string("{\"prompt\": \"\xc3\"}"),
        std::string("\0\0\0", 3), deep, "{\"prompt\": " + deep, "{\"a\":" + deep + "}"}) {
    EXPECT_EQ(ParamOf(body, false), "") << body.substr(0, 40);
    EXPECT_EQ(ParamOf(body, true), "") << body.substr(0, 40);
  }
}

}  // namespace
}  // namespace vericache
