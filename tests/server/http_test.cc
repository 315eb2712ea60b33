// The server as its clients see it.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <map>
#include <string>
#include <vector>

#include "server/served.h"

namespace vericache {
namespace {

const char kText[] = "The quick brown fox jumps over the lazy dog, again and again.";

Json Completion(const Json& more = Json::object()) {
  Json body = {{"prompt", kText}, {"max_tokens", 24}, {"temperature", 0}};
  body.update(more);
  return body;
}
Json ChatBody(const Json& more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", kText}}}},
               {"max_tokens", 24},
               {"temperature", 0}};
  body.update(more);
  return body;
}

// The text and the last finish reason of each choice of a stream.
struct Streamed {
  std::map<int, std::string> texts;
  std::map<int, std::string> reasons;
  std::map<int, Json> logprobs;
};
Streamed Collect(const std::vector<Json>& events) {
  Streamed all;
  for (const Json& event : events) {
    for (const Json& choice : event.at("choices")) {
      const int index = choice.at("index");
      EXPECT_FALSE(all.reasons.contains(index)) << "nothing comes after the end";
      all.texts[index] += choice.contains("delta") ? choice["delta"].value("content", "")
                                                   : choice["text"].get<std::string>();
      if (choice["finish_reason"].is_string()) {
        all.reasons[index] = choice["finish_reason"];
        EXPECT_GT(choice.at("vericache").at("full_cache_bytes"), 0);
      }
      if (choice["logprobs"].is_object() && choice["logprobs"].contains("content")) {
        for (const Json& each : choice["logprobs"]["content"]) {
          all.logprobs[index].push_back(each);
        }
      }
    }
  }
  return all;
}

TEST(Server, AnswersAsTheEngineDoes) {
  const Served served;
  const Json answer = served.Post("/v1/completions", Completion());
  const Tokenizer tokenizer(TinyGgufPath(ServedModel()));
  const Result full =
      RunFull(LoadTiny(ServedModel()),
              {{.id = "0", .tokens = tokenizer.Encode(kText, true), .max_tokens = 24}})
          .at(0);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], TextOfTokens(tokenizer, full.tokens));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], full.prompt_tokens);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 24);
  EXPECT_EQ(answer["usage"]["total_tokens"], full.prompt_tokens + 24);
  EXPECT_GT(choice["vericache"]["rounds"], 0);
  EXPECT_GT(choice["vericache"]["acceptance_length"], 0.0);
  EXPECT_GT(choice["vericache"]["compressed_cache_bytes"], 0);
  EXPECT_EQ(choice["vericache"]["policy"], "vericache");

  // The prompt's tokens, and another policy, give the same.
  const Json tokens = served.Post("/v1/tokenize", {{"prompt", kText}});
  EXPECT_EQ(tokens["count"], full.prompt_tokens);
  for (const Json& more :
       {Json{{"prompt", tokens["tokens"]}}, Json{{"vericache", {{"policy", "full"}}}},
        Json{{"vericache", {{"draft_length", 2}}}}}) {
    EXPECT_EQ(served.Post("/v1/completions", Completion(more))["choices"][0]["text"],
              choice["text"]);
  }
  EXPECT_EQ(served.Post(
                "/v1/completions",
                Completion({{"vericache",
                             {{"policy", "full"}}}}))["choices"][0]["vericache"]["drafted_tokens"],
            0);
}

TEST(Server, StreamsWhatItAnswers) {
  const Served served;
  const Json more = {{"n", 2}, {"seed", 5}, {"temperature", 0.9}};
  for (const std::string path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool chat = path == "/v1/chat/completions";
    Json body = chat ? ChatBody(more) : Completion(more);
    const Json whole = served.Post(path, body);
    body["stream_options"] = {{"include_usage", true}};
    const std::vector<Json> events = served.Stream(path, body);
    const Streamed streamed = Collect(events);
    for (int i = 0; i < 2; ++i) {
      const Json& choice = whole["choices"][static_cast<std::size_t>(i)];
      EXPECT_EQ(streamed.texts.at(i), chat ? choice["message"]["content"] : choice["text"]);
      EXPECT_EQ(streamed.reasons.at(i), choice["finish_reason"]);
      EXPECT_EQ(choice["vericache"]["seed"], 5 + i);
    }
    EXPECT_NE(streamed.texts.at(0), streamed.texts.at(1));
    EXPECT_EQ(events.back()["usage"], whole["usage"]);
    EXPECT_TRUE(events.back()["choices"].empty());
    EXPECT_GT(events.size(), 4U);
    EXPECT_EQ(events.front()["object"], chat ? "chat.completion.chunk" : "text_completion");
  }
}

TEST(Server, EndsBeforeAStopString) {
  const Served served;
  const std::string text =
      served.Post("/v1/chat/completions", ChatBody())["choices"][0]["message"]["content"];
  // Some whole characters of it.
  std::size_t from = 8;
  while ((static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U) {
    ++from;
  }
  std::size_t to = from + 3;
  while (to < text.size() && (static_cast<unsigned char>(text[to]) & 0xC0U) == 0x80U) {
    ++to;
  }
  const std::string stop = text.substr(from, to - from);
  const Json whole = served.Post("/v1/chat/completions", ChatBody({{"stop", {"never", stop}}}));
  const Json& choice = whole["choices"][0];
  EXPECT_EQ(choice["message"]["content"], text.substr(0, text.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_LT(whole["usage"]["completion_tokens"], 24);
  const Streamed streamed =
      Collect(served.Stream("/v1/chat/completions", ChatBody({{"stop", stop}})));
  EXPECT_EQ(streamed.texts.at(0), choice["message"]["content"]);
  EXPECT_EQ(streamed.reasons.at(0), "stop");
}

// Those of the verify are those of the full cache, to the last bit.
TEST(Server, LogprobsAreTheFullCachesOwn) {
  EngineOptions full = VeriCacheOptions("none", 1.0, 8);
  full.policy = Policy::kFull;
  const Json body = ChatBody({{"logprobs", true}, {"top_logprobs", 3}});
  const Json logprobs =
      Served(full).Post("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(logprobs.size(), 24U);
  EXPECT_EQ(logprobs[3]["top_logprobs"].size(), 3U);
  EXPECT_EQ(logprobs[3]["top_logprobs"][0]["logprob"], logprobs[3]["logprob"]) << "greedy";
  EXPECT_LT(logprobs[3]["logprob"], 0.0);
  const Served served(VeriCacheOptions("kivi2", 1.0, 8));
  EXPECT_EQ(served.Post("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"],
            logprobs);
  EXPECT_EQ(Collect(served.Stream("/v1/chat/completions", body)).logprobs.at(0), logprobs);
  const Json old = served.Post("/v1/completions", Completion({{"logprobs", 2}}))["choices"][0];
  EXPECT_EQ(old["logprobs"]["token_logprobs"].size(), 24U);
  EXPECT_EQ(old["logprobs"]["top_logprobs"][0].size(), 2U);
  EXPECT_TRUE(served.Post("/v1/completions", Completion())["choices"][0]["logprobs"].is_null());
}

TEST(Server, SaysWhatItIs) {
  const Served served;
  EXPECT_EQ(Json::parse(served.Client().Get("/health")->body), Json({{"status", "ok"}}));
  const Json models = Json::parse(served.Client().Get("/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 3000);
  const Json tokens = served.Post("/v1/tokenize", {{"prompt", "h\xc3\xa4"}})["tokens"];
  EXPECT_EQ(served.Post("/v1/detokenize", {{"tokens", tokens}})["prompt"], "h\xc3\xa4");
  EXPECT_GT(served.Post("/v1/tokenize", ChatBody())["count"], 61);
  served.Post("/v1/completions", Completion());
  EXPECT_EQ(served.Metric("vericache_generation_tokens_total"), 24);
  EXPECT_EQ(served.Metric("vericache_request_success_total{finished_reason=\"length\"}"), 1);
  EXPECT_EQ(served.Metric("vericache_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(served.Metric("vericache_inter_token_latency_seconds_count"), 23);
  EXPECT_EQ(served.Metric("vericache_request_acceptance_length_count"), 1);
  EXPECT_GT(served.Metric("vericache_spec_decode_num_accepted_tokens_total"), 0);
}

// Each refusal has a status, and names the field and a code where there is one.
TEST(Server, RefusesInOpenAisShape) {
  ServerOptions options;
  options.context = 100;
  options.body_limit = 10'000;
  const Served served(VeriCacheOptions("kivi4", 1.0, 8), options);
  const auto refused = [&](const Json& body, int status, const Json& param, const Json& code) {
    const Json error = served.Post("/v1/completions", body, status)["error"];
    EXPECT_EQ(error["param"], param) << error;
    EXPECT_EQ(error["code"], code) << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
  };
  refused(Completion({{"model", "gpt-4"}}), 404, "model", "model_not_found");
  refused(Completion({{"prompt", std::string(101, 'x')}}), 400, "prompt",
          "context_length_exceeded");
  refused(Completion({{"max_tokens", 60}}), 400, "prompt", "context_length_exceeded");
  refused(Completion({{"prompt", {257}}}), 400, nullptr, nullptr);
  refused(Completion({{"vericache", {{"policy", "lossy"}}}}), 400, "vericache.policy", nullptr);
  refused(Completion({{"prompt", std::string(20'000, 'x')}}), 413, nullptr, "body_too_large");
  httplib::Client client = served.Client();
  EXPECT_EQ(client.Post("/v1/completions", "\xff{", "application/json")->status, 400);
  EXPECT_EQ(client.Post("/v1/completions", std::string(9000, '['), "application/json")->status,
            400);
  const auto unknown = client.Get("/v2/completions");
  EXPECT_EQ(unknown->status, 404);
  EXPECT_EQ(Json::parse(unknown->body)["error"]["code"], "unknown_url");
  EXPECT_EQ(client.Get("/v1/completions")->status, 404);
  EXPECT_TRUE(served.BecomesEmpty(5));
}

TEST(Server, WantsItsKey) {
  ServerOptions options;
  options.api_keys = {"first", "second"};
  const Served served(VeriCacheOptions("kivi4", 1.0, 8), options);
  httplib::Client client = served.Client();
  const auto status = [&](const std::string& header) {
    const auto response = client.Get("/v1/models", httplib::Headers{{"Authorization", header}});
    return response ? response->status : -1;
  };
  EXPECT_EQ(status("Bearer first"), 200);
  EXPECT_EQ(status("Bearer second"), 200);
  for (const char* wrong : {"Bearer firs", "Bearer firstt", "Bearer", "first", "Bearer firstfirst",
                            "Bearer first second"}) {
    EXPECT_EQ(status(wrong), 401) << wrong;
  }
  EXPECT_EQ(client.Get("/v1/models")->status, 401);
  EXPECT_EQ(client.Post("/v1/completions", Completion().dump(), "application/json")->status, 401);
  EXPECT_EQ(client.Get("/health")->status, 200);
}

}  // namespace
}  // namespace vericache
