#include "model/repeat.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace vericache {
namespace {

constexpr int kSinks = 4;       // n_sink in kvpress
constexpr int kLastTokens = 8;  // prev_postfix_size in the authors' code

std::vector<TokenId> WithoutBegin(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> tokens = tokenizer.Encode(text, /*special=*/true);
  const auto begin = static_cast<std::ptrdiff_t>(tokenizer.Encode("", false).size());
  tokens.erase(tokens.begin(), tokens.begin() + begin);
  return tokens;
}

// What follows the user's words in the chat template.
std::string SuffixOf(const Tokenizer& tokenizer) {
  const std::string words = "dummy context";
  try {
    const ChatMessage message{.role = "user", .content = words};
    const std::string text = tokenizer.ApplyChatTemplate({&message, 1});
    const std::size_t at = text.rfind(words);
    return at == std::string::npos ? "\n" : text.substr(at + words.size());
  } catch (const UserError&) {
    return "\n";
  }
}

// What is fed for the chunk of `tokens` from `start` on.
std::vector<TokenId> Fed(std::span<const TokenId> tokens, const RepeatPrompt& prompt, int start,
                         int end) {
  std::vector<TokenId> fed = start == 0 ? prompt.first : prompt.next;
  if (start > 0) {
    const int last = std::max(0, start - kLastTokens);
    fed.insert(fed.end(), tokens.begin() + last, tokens.begin() + start);
  }
  fed.insert(fed.end(), prompt.suffix.begin(), prompt.suffix.end());
  fed.insert(fed.end(), tokens.begin() + start, tokens.begin() + end);
  return fed;
}

}  // namespace

RepeatPrompt RepeatPromptOf(const Tokenizer& tokenizer) {
  return {
      .first = WithoutBegin(tokenizer, "\n\nRepeat the previous context exactly."),
      .next = WithoutBegin(tokenizer,
                           "\n\nRepeat the part of the previous context exactly, starting with"),
      .suffix = WithoutBegin(tokenizer, SuffixOf(tokenizer)),
  };
}

void RecordRepetition(Transformer& transformer, const KvCache& full,
                      std::span<const TokenId> tokens, const RepeatPrompt& prompt, int chunk,
                      int rows, Taps& taps) {
  const ModelParams& params = transformer.model().params();
  const int positions = static_cast<int>(tokens.size());
  PagePool pool({std::numeric_limits<std::uint64_t>::max()});
  KvCache cache(pool, PageKind::kTransient, full.geometry(), full.tail_layout().format());
  const int shared = positions / kPageSlots * kPageSlots;
  cache.ShareFront(full, shared);
  const auto room = [](bool has) {
    if (!has) {
      throw UserError("too little memory to have the model repeat the prompt");
    }
  };
  room(cache.AppendTail(full, shared, positions - shared));
  taps.repeated.emplace(full.geometry(), params.heads, positions, KeyAttention::Over::kLargest,
                        transformer.threads());
  Taps recorded;
  std::swap(recorded.repeated, taps.repeated);
  for (int start = 0; start < positions; start += chunk) {
    const int end = std::min(positions, start + chunk);
    const std::vector<TokenId> fed = Fed(tokens, prompt, start, end);
    const int count = static_cast<int>(fed.size());
    recorded.repeated->Restrict({{.begin = 0, .end = std::min(kSinks, start)},
                                 {.begin = start, .end = end},
                                 {.begin = positions, .end = positions + count}},
                                {.begin = start, .end = end});
    for (int first = 0; first < count; first += rows) {
      const int some = std::min(rows, count - first);
      room(cache.Extend(some));
      std::vector<Position> at;
      at.reserve(static_cast<std::size_t>(some));
      for (int i = 0; i < some; ++i) {
        at.push_back(Position{positions + first + i});
      }
      const AttentionTask task{.cache = &cache,
                               .first_row = 0,
                               .rows = some,
                               .first_position = positions + first,
                               .taps = &recorded};
      transformer.Forward({.tokens = std::span(fed).subspan(static_cast<std::size_t>(first),
                                                            static_cast<std::size_t>(some)),
                           .positions = at,
                           .outputs = {},
                           .tasks = {&task, 1}});
    }
    cache.Truncate(count);
  }
  taps.repeated = std::move(recorded.repeated);
}

}  // namespace vericache
