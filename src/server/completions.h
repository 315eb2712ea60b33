// /v1/completions and /v1/chat/completions: from a request to its answer, whole
// or as a stream.
#pragma once

#include <atomic>
#include <vector>

#include "engine/engine_options.h"
#include "model/tokenizer.h"
#include "server/api_request.h"
#include "server/engine_loop.h"
#include "server/server_options.h"

namespace httplib {
struct Request;
struct Response;
}  // namespace httplib

namespace vericache {

class Completions {
 public:
  Completions(const ServerOptions& options, const Tokenizer& tokenizer, EngineLoop& loop)
      : options_(options), tokenizer_(tokenizer), loop_(loop) {}

  // Answers, or throws ApiError or UserError; what a client has left is
  // cancelled.
  void Serve(const httplib::Request& request, httplib::Response& response, bool chat) const;

  // From now on Serve refuses; waits until every stream that it began is on its way, so that the
  // library, which cuts off those that are not, can be told to end.
  void Drain();

  // The tokens of a prompt, or of messages in the model's chat template. Throw
  // as Serve does.
  std::vector<TokenId> Encode(const PromptInput& prompt) const;
  std::vector<TokenId> Encode(const std::vector<ChatMessage>& messages) const;

 private:
  Question QuestionOf(const ApiRequest& asked) const;

  const ServerOptions& options_;
  const Tokenizer& tokenizer_;
  EngineLoop& loop_;
  std::atomic<bool> draining_{false};
  mutable std::atomic<int> opening_{0};  // requests of which it is not known how they are answered
};

}  // namespace vericache
