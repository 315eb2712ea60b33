#include "server/answer_text.h"

#include <algorithm>

namespace vericache {

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
      for (std::size_t size = std::min(stop.size() - 1, pending_.size()); size > held; --size) {
        if (pending_.ends_with(std::string_view(stop).substr(0, size))) {
          held = size;
        }
      }
    }
  }
  std::string text = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, text.size());
  return text;
}

std::string TextOfTokens(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  TextStream stream;
  std::string text;
  for (const TokenId token : tokens) {
    text += stream.Add(tokenizer.Piece(token));
  }
  return text + stream.Finish();
}

}  // namespace vericache
