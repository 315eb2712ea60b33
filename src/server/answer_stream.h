// What the engine's thread hands to the thread that serves a client.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace vericache {

struct TokenLogprob {
  TokenId token{};
  float logprob = 0.0F;
  std::vector<std::pair<TokenId, float>> top;  // the most likely tokens, the likeliest first
};

// News of one of the answers.
struct AnswerPart {
  int choice = 0;
  int tokens = 0;                      // new ones, verified
  std::string text;                    // that they complete; may be empty
  std::vector<TokenLogprob> logprobs;  // of those, where asked for
  std::string drafted;                 // not verified; what came of it before is void
  std::optional<Result> result;        // with the last part
};

// A queue between two threads. Parts that the client is too slow to take are
// joined, so that it is never longer than there are answers.
class AnswerStream {
 public:
  void Push(AnswerPart part);
  // The next part; nullopt where none comes within `patience`.
  std::optional<AnswerPart> Next(std::chrono::milliseconds patience);

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<AnswerPart> parts_;
};

}  // namespace vericache
