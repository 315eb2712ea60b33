// Real prompts for the models that VERICACHE_TEST_MODEL and VERICACHE_TEST_MODEL_KQUANT name.
#pragma once

#include <string>
#include <vector>

#include "base/types.h"
#include "model/tokenizer.h"

namespace vericache {

// The path in an environment variable; "" where there is none. Also makes libllama and ggml silent.
std::string EnvironmentPath(const char* variable);

// `count` tokens of English text (the repository's licence) from token `first` on.
std::vector<TokenId> EnglishTokens(const Tokenizer& tokenizer, int first, int count);

// `count` tokens of C++ (this repository's own source).
std::vector<TokenId> CodeTokens(const Tokenizer& tokenizer, int first, int count);

}  // namespace vericache
