#include "server/completions.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iterator>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/json_text.h"
#include "httplib.h"
#include "prompts/prompt_file.h"
#include "server/answer_format.h"
#include "server/answer_text.h"
#include "server/api_error.h"
#include "server/api_response.h"

namespace vericache {
namespace {

// How often a handler that waits looks whether its client is still there.
constexpr std::chrono::milliseconds kPatience{20};

std::uint64_t Random64() {
  thread_local std::mt19937_64 random{std::random_device()()};
  return random();
}

std::string NewId(bool chat) {
  const std::uint64_t number = Random64();
  std::string id(16, '0');
  std::snprintf(id.data(), id.size() + 1, "%016llx", static_cast<unsigned long long>(number));
  return (chat ? "chatcmpl-" : "cmpl-") + id;
}

std::int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ApiError TooLate(std::chrono::seconds deadline) {
  return {504, "server_error",
          "the answer was not complete within " + std::to_string(deadline.count()) + " s",
          std::nullopt, "deadline_exceeded"};
}

// Counts itself.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

// An answer under way, to one client.
struct Exchange {
  std::unique_ptr<Answer> answer;
  AnswerWriter writer;
  int answers_per_prompt = 1;
  bool chat = false;
  bool include_usage = false;
  bool holds_calls = false;  // text of a stream that may be a call of a tool
  Clock::time_point until;
  std::chrono::seconds deadline;
  std::function<bool()> left;  // whether the client has
  std::unique_ptr<Counted> opening;
  std::vector<AnswerPart> parts;
  std::size_t ended = 0;

  // The next part; nullopt where the client has left. Throws ApiError.
  std::optional<AnswerPart> Next() {
    while (!left()) {
      if (Clock::now() > until) {
        throw TooLate(deadline);
      }
      std::optional<AnswerPart> part = answer->Next(kPatience);
      if (!part) {
        continue;
      }
      if (part->result) {
        ++ended;
        if (part->result->finish_reason == FinishReason::kError) {
          throw ApiError(500, "server_error", part->result->error, std::nullopt, "engine_error");
        }
      }
      return part;
    }
    return std::nullopt;
  }

  bool complete() const { return ended == parts.size(); }

  OrderedJson Usage() const {
    std::vector<Result> results;
    results.reserve(parts.size());
    for (const AnswerPart& part : parts) {
      results.push_back(*part.result);
    }
    return UsageOf(results, answers_per_prompt);
  }
};

void SendWhole(Exchange& exchange, httplib::Response& response) {
  while (!exchange.complete()) {
    std::optional<AnswerPart> part = exchange.Next();
    if (!part) {
      return;
    }
    AnswerPart& whole = exchange.parts[static_cast<std::size_t>(part->choice)];
    whole.choice = part->choice;
    whole.text += part->text;
    std::ranges::move(part->logprobs, std::back_inserter(whole.logprobs));
    whole.result = std::move(part->result);
  }
  response.set_content(Dump(exchange.writer.Whole(exchange.parts, exchange.Usage())),
                       "application/json");
}

// What may be the beginning of a call of a tool waits until the answer is complete.
void HoldCalls(AnswerPart& part, std::string& held) {
  held += part.text;
  const std::string begins = kCallBegins;
  std::size_t free = held.find(begins);
  if (free == std::string::npos) {
    free = held.size() - BegunAtEnd(held, begins);
  }
  part.text = held.substr(0, part.result ? held.size() : free);
  held.erase(0, part.text.size());
}

// Server-sent events: one JSON object each.
class EventWriter {
 public:
  explicit EventWriter(httplib::DataSink& sink) : sink_(sink) {}
  bool Send(const OrderedJson& object) { return SendText(Dump(object)); }
  bool SendText(const std::string& text) {
    const std::string event = "data: " + text + "\n\n";
    return sink_.write(event.data(), event.size());
  }

 private:
  httplib::DataSink& sink_;
};

// False where the client has left.
bool SendStream(Exchange& exchange, EventWriter& events) {
  std::vector<bool> begun(exchange.parts.size(), !exchange.chat);
  while (!exchange.complete()) {
    std::optional<AnswerPart> part = exchange.Next();
    if (!part) {
      return false;
    }
    const auto choice = static_cast<std::size_t>(part->choice);
    if (exchange.holds_calls) {
      HoldCalls(*part, exchange.parts[choice].text);
    }
    if (!begun[choice] && !events.Send(exchange.writer.First(part->choice))) {
      return false;
    }
    begun[choice] = true;
    const bool news =
        !part->text.empty() || !part->logprobs.empty() || !part->drafted.empty() || part->result;
    if (news && !events.Send(exchange.writer.Chunk(*part))) {
      return false;
    }
    exchange.parts[choice].result = std::move(part->result);
  }
  return !exchange.include_usage || events.Send(exchange.writer.UsageChunk(exchange.Usage()));
}

}  // namespace

std::vector<TokenId> Completions::Encode(const PromptInput& prompt) const {
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt)) {
    return *tokens;
  }
  return tokenizer_.Encode(std::get<std::string>(prompt), /*special=*/true);
}

std::vector<TokenId> Completions::Encode(const std::vector<ChatMessage>& messages) const {
  return EncodePrompt({.id = "", .messages = messages, .text = "", .max_tokens = std::nullopt},
                      /*chat=*/true, tokenizer_);
}

Question Completions::QuestionOf(const ApiRequest& asked) const {
  if (!asked.model.empty() && asked.model != options_.model_name) {
    throw ApiError(404, "invalid_request_error",
                   "the model '" + asked.model + "' does not exist; this server has '" +
                       options_.model_name + "'",
                   "model", "model_not_found");
  }
  std::optional<int> draft_length = asked.draft_length;
  const Policy policy = loop_.options().policy;
  if (asked.policy && *asked.policy != policy) {
    if (*asked.policy != Policy::kFull || !Verifies(policy)) {
      throw ApiError::Invalid("this server runs the policy '" + std::string(Name(policy)) + "'" +
                                  (Verifies(policy) ? " and serves 'full' beside it" : ""),
                              "vericache.policy");
    }
    draft_length = 0;
  }
  Question question{.stop = asked.stop, .logprobs = asked.logprobs, .drafts = asked.drafts};
  if (const std::string rules = GrammarOf(asked); !rules.empty()) {
    question.grammar = std::make_shared<const Grammar>(tokenizer_, rules);
  }
  SamplingOptions sampling = asked.sampling;
  sampling.rejection = !asked.seeded;
  sampling.seed = asked.seeded ? sampling.seed : Random64() >> 1U;
  const char* field = asked.chat ? "messages" : "prompt";
  const std::size_t prompts = asked.chat ? 1 : asked.prompts.size();
  for (std::size_t i = 0; i < prompts; ++i) {
    const std::vector<TokenId> tokens =
        asked.chat ? Encode(MessagesOf(asked)) : Encode(asked.prompts[i]);
    const auto size = static_cast<int>(tokens.size());
    if (size == 0) {
      throw ApiError::Invalid("the prompt is empty", field);
    }
    if (size + (asked.max_tokens ? std::min(*asked.max_tokens, options_.context + 1) : 1) >
        options_.context + 1) {
      throw ApiError::Invalid("at most " + std::to_string(options_.context) +
                                  " tokens are served; the prompt has " + std::to_string(size) +
                                  (asked.max_tokens ? ", and " + std::to_string(*asked.max_tokens) +
                                                          " more were asked for"
                                                    : ""),
                              field, "context_length_exceeded");
    }
    for (int n = 0; n < asked.n; ++n, ++sampling.seed) {
      question.prompts.push_back(
          {.id = "",
           .tokens = tokens,
           // The last token is never fed, so it needs no place in the context.
           .max_tokens = std::min(asked.max_tokens.value_or(options_.max_tokens),
                                  options_.context + 1 - size),
           .sampling = sampling,
           .draft_length = draft_length,
           .ends = nullptr});
    }
  }
  return question;
}

void Completions::Drain() {
  draining_ = true;
  while (opening_ > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Completions::Serve(const httplib::Request& request, httplib::Response& response,
                        bool chat) const {
  auto opening = std::make_unique<Counted>(opening_);
  if (draining_) {
    throw ApiError(503, "server_error", "the server ends", std::nullopt, "shutting_down");
  }
  const ApiRequest asked = chat ? ParseChat(request.body) : ParseCompletion(request.body);
  Question question = QuestionOf(asked);
  const std::size_t choices = question.prompts.size();
  auto exchange = std::make_shared<Exchange>(
      Exchange{.answer = nullptr,
               .writer = AnswerWriter({.chat = chat,
                                       .id = NewId(chat),
                                       .created = Now(),
                                       .model = options_.model_name,
                                       .logprobs = asked.logprobs.has_value(),
                                       .tools = asked.tool_choice != ToolChoice::kNone,
                                       .policy = asked.policy.value_or(loop_.options().policy)},
                                      tokenizer_),
               .answers_per_prompt = asked.n,
               .chat = chat,
               .include_usage = asked.include_usage,
               .holds_calls = asked.tool_choice != ToolChoice::kNone,
               .until = Clock::now() + options_.deadline,
               .deadline = options_.deadline,
               .left = request.is_connection_closed,
               .opening = std::move(opening),
               .parts = std::vector<AnswerPart>(choices)});
  exchange->answer = loop_.Ask(std::move(question));
  if (!asked.stream) {
    exchange->opening.reset();
    SendWhole(*exchange, response);
    return;
  }
  response.set_header("Cache-Control", "no-cache");
  // All of it in one call: between calls the library would cut a stream off
  // when it shuts down.
  response.set_chunked_content_provider(
      "text/event-stream", [exchange](std::size_t, httplib::DataSink& sink) {
        exchange->opening.reset();
        EventWriter events(sink);
        bool there = false;
        try {
          there = SendStream(*exchange, events) && events.SendText("[DONE]");
        } catch (const ApiError& error) {
          there = events.Send(error.ToJson());
        }
        exchange->answer.reset();
        if (there) {
          sink.done();
        }
        return there;
      });
}

}  // namespace vericache
