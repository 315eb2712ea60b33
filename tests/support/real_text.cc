#include "support/real_text.h"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "ggml.h"
#include "llama.h"
#include "prompts/prompt_file.h"

namespace vericache {
namespace {

std::vector<TokenId> Part(const Tokenizer& tokenizer, const std::string& file, int first,
                          int count) {
  const std::string text = ReadText((std::filesystem::path(VERICACHE_SOURCE_DIR) / file).string());
  const std::vector<TokenId> all = tokenizer.Encode(text, /*special=*/false);
  if (static_cast<std::size_t>(first + count) > all.size()) {
    throw std::runtime_error(file + " has only " + std::to_string(all.size()) + " tokens");
  }
  return {all.begin() + first, all.begin() + first + count};
}

}  // namespace

std::string EnvironmentPath(const char* variable) {
  const auto silent = [](ggml_log_level, const char*, void*) {};
  ggml_log_set(silent, nullptr);
  llama_log_set(silent, nullptr);
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::vector<TokenId> EnglishTokens(const Tokenizer& tokenizer, int first, int count) {
  return Part(tokenizer, "LICENSE", first, count);
}

std::vector<TokenId> CodeTokens(const Tokenizer& tokenizer, int first, int count) {
  return Part(tokenizer, "tests/data/code.txt", first, count);
}

}  // namespace vericache
