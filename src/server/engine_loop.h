// The thread that owns the engine, and the one door to it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "model/tokenizer.h"
#include "server/answer_stream.h"
#include "server/answer_text.h"
#include "server/metrics.h"

namespace vericache {

// What is asked of the engine: one answer to each prompt. Prompt::ends is the
// loop's own.
struct Question {
  std::vector<Prompt> prompts;
  std::vector<std::string> stop;
  std::optional<int> logprobs;
  std::shared_ptr<const Grammar> grammar;
  bool drafts = false;  // stream what is drafted, too
};

class EngineLoop;

// The answers to a question, as they come. What is not finished when it goes is
// cancelled.
class Answer {
 public:
  Answer(EngineLoop& loop, std::shared_ptr<AnswerStream> stream)
      : loop_(loop), stream_(std::move(stream)) {}
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  std::optional<AnswerPart> Next(std::chrono::milliseconds patience) {
    return stream_->Next(patience);
  }

 private:
  EngineLoop& loop_;
  std::shared_ptr<AnswerStream> stream_;
};

class EngineLoop {
 public:
  // `queue`: answers that wait for the engine, at most, beside options.batch
  // that run. All that is referred to must outlive it. Throws UserError where
  // the engine cannot be made.
  EngineLoop(const Model& model, const Tokenizer& tokenizer, EngineOptions options, int queue,
             Metrics& metrics);
  // Ends what is left.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // From any thread. Throws ApiError where the queue is full or the engine has
  // failed, UserError where a prompt can never run.
  std::unique_ptr<Answer> Ask(Question question);

  // What ended the engine; empty as long as it runs.
  std::string failure() const;
  // Called once it has failed, on its thread.
  void OnFailure(std::function<void()> call) { on_failure_ = std::move(call); }

  const EngineOptions& options() const { return engine_->options(); }

 private:
  friend class Answer;

  // One prompt on its way to the engine, or in it.
  struct Choice {
    std::shared_ptr<AnswerStream> stream;
    Clock::time_point asked;
    std::optional<Clock::time_point> first_token;
    Clock::time_point last_token;
    AnswerText text;
    bool shows_drafts = false;
    std::vector<TokenId> drafted;  // of the round under way
    AnswerPart part;               // under way
  };
  struct Command {
    std::shared_ptr<AnswerStream> stream;
    std::optional<Question> question;  // empty: cancel what is left of the stream
    Clock::time_point asked;
  };

  void Cancel(std::shared_ptr<AnswerStream> stream);
  void Send(Command command);
  EngineEvents Events();
  void Run();
  bool TakeCommands();
  void Begin(Command& command);
  void OnToken(Choice& choice, const EmittedToken& emitted, std::optional<int> logprobs);
  void OnDrafted(int index, TokenId token);
  void OnTokens(int index, std::span<const TokenId> tokens);
  void OnFinish(int index, const Result& result);
  void Fail(const std::string& why);

  const Tokenizer& tokenizer_;
  Metrics& metrics_;
  std::unique_ptr<Engine> engine_;
  const int most_;
  std::atomic<int> asked_{0};          // answers that were asked for and have not ended
  std::atomic<double> answer_s_{1.0};  // that one takes, lately
  std::function<void()> on_failure_;

  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Command> commands_;
  std::atomic<bool> has_commands_{false};
  bool closing_ = false;
  std::string failure_;

  // Of its thread alone.
  std::map<int, std::unique_ptr<Choice>> choices_;
  std::thread thread_;
};

}  // namespace vericache
