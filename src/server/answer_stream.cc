#include "server/answer_stream.h"

#include <algorithm>
#include <iterator>

namespace vericache {

void AnswerStream::Push(AnswerPart part) {
  {
    const std::lock_guard lock(mutex_);
    const auto same = std::ranges::find(parts_, part.choice, &AnswerPart::choice);
    if (same == parts_.end()) {
      parts_.push_back(std::move(part));
    } else {
      same->tokens += part.tokens;
      same->text += part.text;
      std::ranges::move(part.logprobs, std::back_inserter(same->logprobs));
      same->drafted = std::move(part.drafted);
      same->result = std::move(part.result);
    }
  }
  news_.notify_one();
}

std::optional<AnswerPart> AnswerStream::Next(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!news_.wait_for(lock, patience, [this] { return !parts_.empty(); })) {
    return std::nullopt;
  }
  AnswerPart part = std::move(parts_.front());
  parts_.pop_front();
  return part;
}

}  // namespace vericache
