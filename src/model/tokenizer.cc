#include "model/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "llama.h"

namespace vericache {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the UTF-8 character that begins with `first`; 1 for what cannot begin one.
std::size_t CharacterBytes(unsigned char first) {
  if (first >= 0xF0 && first <= 0xF4) {
    return 4;
  }
  if (first >= 0xE0 && first < 0xF0) {
    return 3;
  }
  return first >= 0xC2 && first < 0xE0 ? 2 : 1;
}

// True where `byte` can be number `i` of the character that `first` begins: neither an overlong
// form nor a surrogate nor beyond U+10FFFF (RFC 3629).
bool IsContinuation(unsigned char first, std::size_t i, unsigned char byte) {
  if (i == 1) {
    switch (first) {
      case 0xE0:
        return byte >= 0xA0 && byte <= 0xBF;
      case 0xED:
        return byte >= 0x80 && byte <= 0x9F;
      case 0xF0:
        return byte >= 0x90 && byte <= 0xBF;
      case 0xF4:
        return byte >= 0x80 && byte <= 0x8F;
      default:
        break;
    }
  }
  return (byte & 0xC0U) == 0x80U;
}

}  // namespace

void Tokenizer::FreeModel::operator()(llama_model* model) const { llama_model_free(model); }

Tokenizer::Tokenizer(const std::filesystem::path& path) : path_(path) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  model_.reset(llama_model_load_from_file(path.c_str(), params));
  if (!model_) {
    throw UserError(path.string() + ": libllama cannot read the vocabulary");
  }
  vocabulary_ = llama_model_get_vocab(model_.get());
  if (llama_vocab_type(vocabulary_) == LLAMA_VOCAB_TYPE_NONE) {
    throw UserError(path.string() + ": the file has no vocabulary");
  }
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text, bool special) const {
  const bool add_special = true;
  std::vector<llama_token> tokens(text.size() + 8);
  int count =
      llama_tokenize(vocabulary_, text.data(), static_cast<std::int32_t>(text.size()),
                     tokens.data(), static_cast<std::int32_t>(tokens.size()), add_special, special);
  if (count < 0) {
    tokens.resize(static_cast<std::size_t>(-count));
    count = llama_tokenize(vocabulary_, text.data(), static_cast<std::int32_t>(text.size()),
                           tokens.data(), static_cast<std::int32_t>(tokens.size()), add_special,
                           special);
  }
  std::vector<TokenId> result;
  result.reserve(static_cast<std::size_t>(std::max(count, 0)));
  for (int i = 0; i < count; ++i) {
    result.push_back(TokenId{tokens[static_cast<std::size_t>(i)]});
  }
  return result;
}

std::string Tokenizer::Piece(TokenId token) const {
  if (Raw(token) >= llama_vocab_n_tokens(vocabulary_)) {
    return "";  // a row of the output that only pads the matrix
  }
  std::string piece(32, '\0');
  int size = llama_token_to_piece(vocabulary_, Raw(token), piece.data(),
                                  static_cast<std::int32_t>(piece.size()), 0, /*special=*/false);
  if (size < 0) {
    piece.resize(static_cast<std::size_t>(-size));
    size = llama_token_to_piece(vocabulary_, Raw(token), piece.data(),
                                static_cast<std::int32_t>(piece.size()), 0, /*special=*/false);
  }
  piece.resize(static_cast<std::size_t>(std::max(size, 0)));
  return piece;
}

bool Tokenizer::IsEnd(TokenId token) const {
  return Raw(token) < llama_vocab_n_tokens(vocabulary_) &&
         llama_vocab_is_eog(vocabulary_, Raw(token));
}

std::string Tokenizer::ApplyChatTemplate(std::span<const ChatMessage> messages) const {
  const char* chat_template = llama_model_chat_template(model_.get(), nullptr);
  if (chat_template == nullptr) {
    throw UserError(path_.string() +
                    ": the model has no chat template; give the prompt as text, without --chat");
  }
  std::vector<llama_chat_message> chat;
  std::size_t size = 0;
  for (const ChatMessage& message : messages) {
    if ((message.role + message.content).find('\0') != std::string::npos) {
      throw UserError("a chat message has a zero byte in it; is it not UTF-8 text?");
    }
    chat.push_back({.role = message.role.c_str(), .content = message.content.c_str()});
    size += message.role.size() + message.content.size();
  }
  std::string text(2 * size + 1024, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int written =
        llama_chat_apply_template(chat_template, chat.data(), chat.size(), /*add_ass=*/true,
                                  text.data(), static_cast<std::int32_t>(text.size()));
    if (written < 0) {
      throw UserError(path_.string() + ": libllama does not know the model's chat template");
    }
    const bool fits = static_cast<std::size_t>(written) <= text.size();
    text.resize(static_cast<std::size_t>(written));
    if (fits) {
      break;
    }
  }
  return text;
}

std::string TextStream::Add(std::string_view piece) {
  pending_ += piece;
  std::string complete;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const auto first = static_cast<unsigned char>(pending_[at]);
    const std::size_t size = CharacterBytes(first);
    std::size_t have = 1;
    while (have < size && at + have < pending_.size() &&
           IsContinuation(first, have, static_cast<unsigned char>(pending_[at + have]))) {
      ++have;
    }
    if (have < size && at + have == pending_.size()) {
      break;  // more may come
    }
    const bool valid = have == size && (size > 1 || first < 0x80U);
    complete += valid ? std::string_view(pending_).substr(at, size) : kReplacement;
    at += have;
  }
  pending_.erase(0, at);
  return complete;
}

std::string TextStream::Finish() {
  std::string rest;
  if (!pending_.empty()) {
    rest = kReplacement;
    pending_.clear();
  }
  return rest;
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
