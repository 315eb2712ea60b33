#include "server/engine_loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/api_error.h"
#include "server/logprobs.h"

namespace vericache {
Answer::~Answer() { loop_.Cancel(std::move(stream_)); }

EngineLoop::EngineLoop(const Model& model, const Tokenizer& tokenizer, EngineOptions options,
                       int queue, Metrics& metrics)
    : tokenizer_(tokenizer),
      metrics_(metrics),
      engine_(std::make_unique<Engine>(model, std::move(options), Events())),
      most_(engine_->options().batch + queue) {
  engine_->SetNews([this] { return has_commands_.load(std::memory_order_relaxed); });
  metrics_.Show(engine_->state(), engine_->counts(), engine_->link_busy_seconds());
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  news_.notify_one();
  thread_.join();
}

std::unique_ptr<Answer> EngineLoop::Ask(Question question) {
  const auto count = static_cast<int>(question.prompts.size());
  if (count > most_) {
    throw ApiError::Invalid("more answers are asked for at once (" + std::to_string(count) +
                                ") than the queue holds (" + std::to_string(most_) + ")",
                            "n");
  }
  for (const Prompt& prompt : question.prompts) {
    engine_->Validate(prompt);
  }
  if (!failure().empty()) {
    throw ApiError(503, "server_error", "the engine has failed");
  }
  if (asked_.fetch_add(count) + count > most_) {
    asked_.fetch_sub(count);
    metrics_.Refused();
    // The queue moves on by a batch at a time.
    const double rounds = std::ceil(static_cast<double>(most_) / engine_->options().batch);
    throw ApiError::Overloaded(static_cast<int>(
        std::clamp(std::ceil(answer_s_.load() * std::max(1.0, rounds - 1.0)), 1.0, 120.0)));
  }
  auto stream = std::make_shared<AnswerStream>();
  Send({.stream = stream, .question = std::move(question), .asked = Clock::now()});
  return std::make_unique<Answer>(*this, std::move(stream));
}

std::string EngineLoop::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EngineLoop::Cancel(std::shared_ptr<AnswerStream> stream) {
  Send({.stream = std::move(stream), .question = std::nullopt, .asked = {}});
}

void EngineLoop::Send(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    has_commands_.store(true, std::memory_order_relaxed);
  }
  news_.notify_one();
}

EngineEvents EngineLoop::Events() {
  EngineEvents events;
  events.on_tokens = [this](int index, std::span<const TokenId> tokens) {
    OnTokens(index, tokens);
  };
  events.on_drafted = [this](int index, TokenId token) { OnDrafted(index, token); };
  events.on_finish = [this](int index, const Result& result) { OnFinish(index, result); };
  return events;
}

void EngineLoop::Run() {
  try {
    while (TakeCommands()) {
      engine_->Step();
      metrics_.Show(engine_->state(), engine_->counts(), engine_->link_busy_seconds());
    }
  } catch (const std::exception& error) {
    Fail(error.what());
  }
}

// Waits for them where there is nothing else to do. False once it is to end.
bool EngineLoop::TakeCommands() {
  std::vector<Command> commands;
  {
    std::unique_lock lock(mutex_);
    const EngineState state = engine_->state();
    const bool idle = state.requests == RequestStates{};
    news_.wait(lock, [&] { return !idle || closing_ || !commands_.empty(); });
    if (closing_) {
      return false;
    }
    commands = std::exchange(commands_, {});
    has_commands_.store(false, std::memory_order_relaxed);
  }
  for (Command& command : commands) {
    if (command.question) {
      Begin(command);
      continue;
    }
    std::vector<int> left;
    for (const auto& [index, choice] : choices_) {
      if (choice->stream == command.stream) {
        left.push_back(index);
      }
    }
    for (const int index : left) {
      engine_->Cancel(index);
    }
  }
  return true;
}

void EngineLoop::Begin(Command& command) {
  Question& question = *command.question;
  for (std::size_t i = 0; i < question.prompts.size(); ++i) {
    Prompt& prompt = question.prompts[i];
    auto choice = std::make_unique<Choice>(Choice{.stream = command.stream,
                                                  .asked = command.asked,
                                                  .first_token = std::nullopt,
                                                  .last_token = {},
                                                  .text = {tokenizer_, question.stop},
                                                  .shows_drafts = question.drafts,
                                                  .drafted = {},
                                                  .part = {.choice = static_cast<int>(i)}});
    prompt.grammar = question.grammar;
    prompt.ends = [this, choice = choice.get(),
                   logprobs = question.logprobs](const EmittedToken& emitted) {
      OnToken(*choice, emitted, logprobs);
      return choice->text.stopped();
    };
    choices_.emplace(engine_->Submit(std::move(prompt)), std::move(choice));
  }
}

void EngineLoop::OnToken(Choice& choice, const EmittedToken& emitted, std::optional<int> logprobs) {
  choice.text.Add(emitted.token);
  if (logprobs && !tokenizer_.IsEnd(emitted.token)) {
    choice.part.logprobs.push_back(LogprobOf(emitted, *logprobs));
  }
}

void EngineLoop::OnDrafted(int index, TokenId token) {
  Choice& choice = *choices_.at(index);
  if (choice.shows_drafts) {
    choice.drafted.push_back(token);
    choice.stream->Push(
        {.choice = choice.part.choice, .drafted = TextOfTokens(tokenizer_, choice.drafted)});
  }
}

void EngineLoop::OnTokens(int index, std::span<const TokenId> tokens) {
  Choice& choice = *choices_.at(index);
  const auto count = static_cast<int>(tokens.size());
  const Clock::time_point now = Clock::now();
  if (choice.first_token) {
    metrics_.MoreTokens(count, Seconds(now - choice.last_token));
  } else {
    choice.first_token = now;
    metrics_.FirstToken(Seconds(now - choice.asked));
  }
  choice.last_token = now;
  choice.drafted.clear();
  choice.part.tokens += count;
  choice.part.text = choice.text.Take();
  AnswerPart part{.choice = choice.part.choice};
  std::swap(part, choice.part);
  choice.stream->Push(std::move(part));
}

void EngineLoop::OnFinish(int index, const Result& result) {
  const std::unique_ptr<Choice> choice = std::move(choices_.at(index));
  choices_.erase(index);
  const double seconds = Seconds(Clock::now() - choice->asked);
  const double queued =
      choice->first_token
          ? std::max(0.0, Seconds(*choice->first_token - choice->asked) - result.prefill_s)
          : seconds;
  metrics_.Finished(result, queued, seconds);
  constexpr double kNewest = 0.2;
  if (result.finish_reason != FinishReason::kCancelled) {
    answer_s_ = answer_s_ + kNewest * (seconds - queued - answer_s_);
  }
  asked_.fetch_sub(1);
  choice->text.Finish();
  choice->part.text += choice->text.Take();
  choice->part.result = result;
  choice->stream->Push(std::move(choice->part));
}

// The engine is in no state to go on: all who wait get to know.
void EngineLoop::Fail(const std::string& why) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    failure_ = why;
    commands = std::exchange(commands_, {});
  }
  Result failed;
  failed.finish_reason = FinishReason::kError;
  failed.error = "the engine has failed: " + why;
  for (const auto& [index, choice] : choices_) {
    choice->stream->Push({.choice = choice->part.choice, .result = failed});
  }
  for (const Command& command : commands) {
    const std::size_t count = command.question ? command.question->prompts.size() : 0;
    for (std::size_t i = 0; i < count; ++i) {
      command.stream->Push({.choice = static_cast<int>(i), .result = failed});
    }
  }
  if (on_failure_) {
    on_failure_();
  }
}

}  // namespace vericache
