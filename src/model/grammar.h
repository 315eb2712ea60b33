#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/types.h"
#include "model/tokenizer.h"

struct llama_sampler;  // NOLINT(readability-identifier-naming): libllama's

namespace vericache {

// Which tokens may come next in a text that a grammar describes; through libllama. A value: a copy
// goes on by itself.
class Grammar {
 public:
  // `gbnf`: rules in llama.cpp's notation, of which `root` is the whole text. The tokenizer must
  // outlive it. Throws UserError where they cannot be parsed.
  Grammar(const Tokenizer& tokenizer, const std::string& gbnf);
  Grammar(const Grammar& other);
  Grammar& operator=(const Grammar& other);
  Grammar(Grammar&&) noexcept;
  Grammar& operator=(Grammar&&) noexcept;
  ~Grammar();

  // Control tokens never may, but for those that end a text, where it may end.
  bool Allows(TokenId token) const;
  // Those that may not come get the logit -infinity. One entry per token of the vocabulary.
  void Mask(std::span<float> logits) const;
  // The text goes on with a token. False, and nothing changed, where that may not come.
  bool Accept(TokenId token);

 private:
  struct Free {
    void operator()(llama_sampler* sampler) const;
  };
  const Tokenizer* tokenizer_;
  std::unique_ptr<llama_sampler, Free> sampler_;
};

}  // namespace vericache
