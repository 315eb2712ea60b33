// Long prompts whose answers are judged by exactness, made from texts that come with the program
// and from a seed: the same ones everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "prompts/prompt_file.h"

namespace vericache {

struct WorkloadKind {
  std::string_view name;
  std::string_view what;
};

// All of them, by name.
std::span<const WorkloadKind> Workloads();

// Counts the tokens of a text, without a chat template.
std::function<int(const std::string&)> CounterOf(const Tokenizer& tokenizer);

// A prompt of at most `tokens` tokens, as `count_tokens` counts those of a text, and of hardly
// fewer: whole records, lines or paragraphs of its document fill it. Throws UserError, listing what
// is known, for an unknown name, and where `tokens` is too few for one record, or more than there
// is text for.
PromptText MakeWorkload(std::string_view name, int tokens, std::uint32_t seed,
                        const std::function<int(const std::string&)>& count_tokens);

}  // namespace vericache
