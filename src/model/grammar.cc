#include "model/grammar.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "llama.h"

namespace vericache {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// A token that libllama's grammars would take for its name, and that no text shows.
bool IsHidden(const llama_vocab* vocabulary, llama_token token) {
  return llama_vocab_is_control(vocabulary, token) && !llama_vocab_is_eog(vocabulary, token);
}

}  // namespace

void Grammar::Free::operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }

Grammar::Grammar(const Tokenizer& tokenizer, const std::string& gbnf)
    : tokenizer_(&tokenizer),
      sampler_(llama_sampler_init_grammar(tokenizer.vocabulary(), gbnf.c_str(), "root")) {
  if (!sampler_ || gbnf.empty()) {
    throw UserError("the grammar cannot be parsed");
  }
}

Grammar::Grammar(const Grammar& other)
    : tokenizer_(other.tokenizer_), sampler_(llama_sampler_clone(other.sampler_.get())) {}

Grammar& Grammar::operator=(const Grammar& other) {
  Grammar copy(other);
  std::swap(tokenizer_, copy.tokenizer_);
  std::swap(sampler_, copy.sampler_);
  return *this;
}

Grammar::Grammar(Grammar&&) noexcept = default;
Grammar& Grammar::operator=(Grammar&&) noexcept = default;
Grammar::~Grammar() = default;

bool Grammar::Allows(TokenId token) const {
  const llama_vocab* vocabulary = tokenizer_->vocabulary();
  if (Raw(token) >= llama_vocab_n_tokens(vocabulary) || IsHidden(vocabulary, Raw(token))) {
    return false;
  }
  llama_token_data data{.id = Raw(token), .logit = 0.0F, .p = 0.0F};
  llama_token_data_array list{.data = &data, .size = 1, .selected = -1, .sorted = false};
  llama_sampler_apply(sampler_.get(), &list);
  return data.logit != kNever;
}

void Grammar::Mask(std::span<float> logits) const {
  const llama_vocab* vocabulary = tokenizer_->vocabulary();
  const auto known =
      std::min(logits.size(), static_cast<std::size_t>(llama_vocab_n_tokens(vocabulary)));
  std::vector<llama_token_data> data;
  data.reserve(known);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<llama_token>(i);
    if (i < known && logits[i] > kNever && !IsHidden(vocabulary, token)) {
      data.push_back({.id = token, .logit = logits[i], .p = 0.0F});
    }
    logits[i] = kNever;
  }
  llama_token_data_array list{
      .data = data.data(), .size = data.size(), .selected = -1, .sorted = false};
  llama_sampler_apply(sampler_.get(), &list);
  for (std::size_t i = 0; i < list.size; ++i) {
    logits[static_cast<std::size_t>(list.data[i].id)] = list.data[i].logit;
  }
}

bool Grammar::Accept(TokenId token) {
  if (!Allows(token)) {
    return false;
  }
  if (!llama_vocab_is_eog(tokenizer_->vocabulary(), Raw(token))) {
    llama_sampler_accept(sampler_.get(), Raw(token));
  }
  return true;
}

}  // namespace vericache
