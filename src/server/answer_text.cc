#include "server/answer_text.h"

#include <algorithm>

namespace vericache {

std::size_t BegunAtEnd(std::string_view text, std::string_view word) {
  std::size_t size = std::min(word.size() - 1, text.size());
  while (!text.ends_with(word.substr(0, size))) {
    --size;
  }
  return size;
}

bool AnswerText::Add(TokenId token) {
  if (!stopped_ && !tokenizer_->IsEnd(token)) {
    pending_ += stream_.Add(tokenizer_->Piece(token));
    stopped_ = FindStop();
  }
  return stopped_;
}

void AnswerText::Finish() {
  if (!stopped_) {
    pending_ += stream_.Finish();
  }
  finished_ = true;
}

// Cuts the text at the first of them.
bool AnswerText::FindStop() {
  std::size_t first = std::string::npos;
  for (const std::string& stop : stop_) {
    first = std::min(first, pending_.find(stop));
  }
  if (first == std::string::npos) {
    return false;
  }
  pending_.resize(first);
  return true;
}

std::string AnswerText::Take() {
  std::size_t held = 0;
  if (!stopped_ && !finished_) {
    for (const std::string& stop : stop_) {
      held = std::max(held, BegunAtEnd(pending_, stop));
    }
  }
  std::string text = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, text.size());
  return text;
}

}  // namespace vericache
