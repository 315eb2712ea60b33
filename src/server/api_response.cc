#include "server/api_response.h"

#include <utility>

#include "server/answer_format.h"

namespace vericache {
namespace {

OrderedJson FinishReasonOf(const Result& result) {
  const FinishReason reason = result.finish_reason;
  const bool complete = reason != FinishReason::kError && reason != FinishReason::kCancelled;
  return complete ? OrderedJson(Name(reason)) : OrderedJson();
}

OrderedJson BytesOf(const std::string& text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : text) {
    bytes.push_back(static_cast<unsigned char>(byte));
  }
  return bytes;
}

}  // namespace

OrderedJson AnswerWriter::Head(bool chunk) const {
  const char* object = "text_completion";
  if (head_.chat) {
    object = chunk ? "chat.completion.chunk" : "chat.completion";
  }
  return {{"id", head_.id},
          {"object", object},
          {"created", head_.created},
          {"model", head_.model},
          {"choices", OrderedJson::array()}};
}

OrderedJson AnswerWriter::Statistics(const Result& result) const {
  return {{"policy", Name(head_.policy)},
          {"seed", result.sampling.seed},
          {"rounds", result.rounds},
          {"drafted_tokens", result.drafted_tokens},
          {"accepted_tokens", result.accepted_tokens},
          {"acceptance_length", result.acceptance_length()},
          {"reloads", result.reloads},
          {"reused_tokens", result.reused_tokens},
          {"full_cache_bytes", result.full_cache.count},
          {"compressed_cache_bytes", result.compressed_cache.count},
          {"prefill_tokens_per_s", result.prefill_tokens_per_s()},
          {"decode_tokens_per_s", result.decode_tokens_per_s()}};
}

// A chat has a list of objects, a completion an object of lists.
OrderedJson AnswerWriter::Logprobs(const std::vector<TokenLogprob>& logprobs) const {
  if (!head_.logprobs) {
    return nullptr;
  }
  OrderedJson content = OrderedJson::array();
  OrderedJson tokens = OrderedJson::array();
  OrderedJson values = OrderedJson::array();
  OrderedJson tops = OrderedJson::array();
  for (const TokenLogprob& each : logprobs) {
    const auto entry = [this](TokenId token, float logprob) -> OrderedJson {
      const std::string piece = tokenizer_.Piece(token);
      return {{"token", piece}, {"logprob", logprob}, {"bytes", BytesOf(piece)}};
    };
    OrderedJson list = OrderedJson::array();
    OrderedJson map = OrderedJson::object();
    for (const auto& [token, logprob] : each.top) {
      list.push_back(entry(token, logprob));
      map[tokenizer_.Piece(token)] = logprob;
    }
    content.push_back(entry(each.token, each.logprob));
    content.back()["top_logprobs"] = std::move(list);
    tokens.push_back(tokenizer_.Piece(each.token));
    values.push_back(each.logprob);
    tops.push_back(std::move(map));
  }
  if (head_.chat) {
    return {{"content", std::move(content)}};
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)}};
}

// The calls in a text take its place.
void AnswerWriter::AddCalls(const std::string& text, bool chunk, OrderedJson& message) const {
  const Calls found = head_.tools ? CallsOf(text) : Calls{};
  if (found.calls.empty()) {
    return;
  }
  message["content"] = found.text.empty() ? OrderedJson() : OrderedJson(found.text);
  for (std::size_t i = 0; i < found.calls.size(); ++i) {
    OrderedJson call = {
        {"id", "call-" + head_.id + "-" + std::to_string(i)},
        {"type", "function"},
        {"function", {{"name", found.calls[i].name}, {"arguments", found.calls[i].arguments}}}};
    if (chunk) {
      call["index"] = i;
    }
    message["tool_calls"].push_back(std::move(call));
  }
}

OrderedJson AnswerWriter::Whole(const std::vector<AnswerPart>& parts,
                                const OrderedJson& usage) const {
  OrderedJson object = Head(/*chunk=*/false);
  for (const AnswerPart& part : parts) {
    OrderedJson choice = {{"index", part.choice}};
    if (head_.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", part.text}, {"refusal", nullptr}};
      AddCalls(part.text, /*chunk=*/false, choice["message"]);
    } else {
      choice["text"] = part.text;
    }
    choice["logprobs"] = Logprobs(part.logprobs);
    choice["finish_reason"] = head_.chat && choice["message"].contains("tool_calls")
                                  ? OrderedJson("tool_calls")
                                  : FinishReasonOf(*part.result);
    choice["vericache"] = Statistics(*part.result);
    object["choices"].push_back(std::move(choice));
  }
  object["usage"] = usage;
  return object;
}

OrderedJson AnswerWriter::First(int choice) const {
  OrderedJson object = Head(/*chunk=*/true);
  object["choices"].push_back({{"index", choice},
                               {"delta", {{"role", "assistant"}, {"content", ""}}},
                               {"logprobs", nullptr},
                               {"finish_reason", nullptr}});
  return object;
}

OrderedJson AnswerWriter::Chunk(const AnswerPart& part) const {
  OrderedJson object = Head(/*chunk=*/true);
  OrderedJson choice = {{"index", part.choice}};
  if (head_.chat) {
    choice["delta"] = OrderedJson::object();
    if (!part.text.empty()) {
      choice["delta"]["content"] = part.text;
      AddCalls(part.text, /*chunk=*/true, choice["delta"]);
    }
  } else {
    choice["text"] = part.text;
  }
  choice["logprobs"] = part.logprobs.empty() ? OrderedJson() : Logprobs(part.logprobs);
  choice["finish_reason"] = part.result ? FinishReasonOf(*part.result) : OrderedJson();
  if (part.result) {
    if (head_.chat && choice["delta"].contains("tool_calls")) {
      choice["finish_reason"] = "tool_calls";
    }
    choice["vericache"] = Statistics(*part.result);
  } else if (!part.drafted.empty()) {
    choice["vericache"] = {{"drafted", part.drafted}};
  }
  object["choices"].push_back(std::move(choice));
  return object;
}

OrderedJson AnswerWriter::UsageChunk(const OrderedJson& usage) const {
  OrderedJson object = Head(/*chunk=*/true);
  object["usage"] = usage;
  return object;
}

OrderedJson UsageOf(const std::vector<Result>& results, int answers_per_prompt) {
  std::int64_t prompt = 0;
  std::int64_t cached = 0;
  std::int64_t completion = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (i % static_cast<std::size_t>(answers_per_prompt) == 0) {
      prompt += results[i].prompt_tokens;
      cached += results[i].reused_tokens;
    }
    completion += static_cast<std::int64_t>(results[i].tokens.size());
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

}  // namespace vericache
