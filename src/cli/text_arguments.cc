#include "cli/text_arguments.h"

#include "prompts/prompt_file.h"

namespace vericache {

void TextArguments::AddTo(CLI::App& command, const std::string& file, int& tokens, int least,
                          int& window) {
  command.add_option("-m,--model", model, "GGUF file")->required();
  command
      .add_option("--text", texts,
                  "Text files, separated by spaces, such as the model will see; \"-\" reads "
                  "standard input")
      ->required();
  command.add_option("-o,--out", output,
                     "Where it is written (default: " + file + ", which is found there)");
  command.add_option("--tokens", tokens, "Tokens that are looked at, at most")
      ->check(CLI::Range(least, 1 << 20))
      ->capture_default_str();
  command.add_option("--window", window, "Tokens of one context, at most")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  command.add_option("-t,--threads", threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

std::vector<std::vector<TokenId>> TextArguments::Tokens(const Tokenizer& tokenizer) const {
  std::vector<std::vector<TokenId>> tokens;
  tokens.reserve(texts.size());
  for (const std::string& text : texts) {
    tokens.push_back(tokenizer.Encode(ReadText(text), /*special=*/false));
  }
  return tokens;
}

}  // namespace vericache
