// The bodies of answers, as OpenAI's API has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "nlohmann/json.hpp"
#include "scheduler/policy.h"
#include "server/answer_stream.h"

namespace vericache {

using OrderedJson = nlohmann::ordered_json;

// What all parts of an answer have in common.
struct AnswerHead {
  bool chat = false;
  std::string id;
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
  bool logprobs = false;
  bool tools = false;  // may be called
  Policy policy = Policy::kVeriCache;
};

class AnswerWriter {
 public:
  AnswerWriter(AnswerHead head, const Tokenizer& tokenizer)
      : head_(std::move(head)), tokenizer_(tokenizer) {}

  // A whole answer. `parts`: of each choice, joined, with its result.
  OrderedJson Whole(const std::vector<AnswerPart>& parts, const OrderedJson& usage) const;

  // Of a stream: a chat's first chunk of a choice, a part, and the usage at the
  // end.
  OrderedJson First(int choice) const;
  OrderedJson Chunk(const AnswerPart& part) const;
  OrderedJson UsageChunk(const OrderedJson& usage) const;

 private:
  OrderedJson Head(bool chunk) const;
  OrderedJson Logprobs(const std::vector<TokenLogprob>& logprobs) const;
  void AddCalls(const std::string& text, bool chunk, OrderedJson& message) const;
  OrderedJson Statistics(const Result& result) const;

  AnswerHead head_;
  const Tokenizer& tokenizer_;
};

// Of all choices: {"prompt_tokens", "completion_tokens", "total_tokens", …}.
OrderedJson UsageOf(const std::vector<Result>& results, int answers_per_prompt);

}  // namespace vericache
