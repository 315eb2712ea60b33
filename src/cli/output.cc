#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/types.h"

namespace vericache {

std::string Fixed(double value, int digits) {
  std::string text(64, '\0');
  text.resize(
      static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.*f", digits, value)));
  return text;
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      text += i + 1 == row.size() ? "\n" : std::string(widths[i] - row[i].size() + 2, ' ');
    }
  }
  return text;
}

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressBar::Show(const std::string& what, int done, int total) {
  if (total <= 0) {
    return;
  }
  if (!terminal_) {
    constexpr double kSeconds = 20.0;  // from one line to the next
    if (SecondsSince(told_) >= kSeconds) {
      std::fprintf(stderr, "%s: %d of %d\n", what.c_str(), done, total);
      told_ = Clock::now();
    }
    return;
  }
  constexpr int kBar = 30;
  const int filled = static_cast<int>(static_cast<std::int64_t>(kBar) * done / total);
  std::fprintf(stderr, "\r\033[K%s [%s%s] %d/%d", what.c_str(),
               std::string(static_cast<std::size_t>(filled), '#').c_str(),
               std::string(static_cast<std::size_t>(kBar - filled), '.').c_str(), done, total);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressBar::Clear() {
  if (shown_) {
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    shown_ = false;
  }
}

std::string TextOf(const Tokenizer& tokenizer, std::vector<TokenId> tokens) {
  std::erase_if(tokens, [&tokenizer](TokenId token) { return tokenizer.IsEnd(token); });
  return TextOfTokens(tokenizer, tokens);
}

void WriteOut(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw UserError("standard output cannot be written: is the disk full, or its reader gone?");
  }
}

nlohmann::ordered_json ToJson(const Result& result, const std::string& text,
                              const EngineOptions& options, Bytes fast_memory_peak) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(result.tokens.size());
  for (const TokenId token : result.tokens) {
    tokens.push_back(Raw(token));
  }
  std::string digest(16, '0');
  std::snprintf(digest.data(), digest.size() + 1, "%016llx",
                static_cast<unsigned long long>(result.logits_digest));
  nlohmann::ordered_json object;
  object["id"] = result.id;
  object["text"] = text;
  object["tokens"] = tokens;
  object["prompt_tokens"] = result.prompt_tokens;
  object["finish_reason"] = Name(result.finish_reason);
  if (!result.error.empty()) {
    object["error"] = result.error;
  }
  object["policy"] = Name(options.policy);
  if (options.policy == Policy::kFull) {
    object["compressor"] = nullptr;
    object["keep"] = nullptr;
  } else {
    object["compressor"] = options.compressor;
    object["keep"] = MakeCompressor(options.compressor).takes_keep() ? options.keep : 1.0;
  }
  if (result.sampling.temperature > 0.0) {
    object["temperature"] = result.sampling.temperature;
    if (result.sampling.rejection) {
      object["seed"] = nullptr;
    } else {
      object["seed"] = result.sampling.seed;
    }
  }
  object["rounds"] = result.rounds;
  object["drafted_tokens"] = result.drafted_tokens;
  object["accepted_tokens"] = result.accepted_tokens;
  object["reloads"] = result.reloads;
  object["reused_tokens"] = result.reused_tokens;
  object["reused_compressed"] = result.reused_compressed;
  object["acceptance_length"] = result.acceptance_length();
  object["prefill_tokens_per_s"] = result.prefill_tokens_per_s();
  object["decode_tokens_per_s"] = result.decode_tokens_per_s();
  object["full_cache_bytes"] = result.full_cache.count;
  object["compressed_cache_bytes"] = result.compressed_cache.count;
  object["fast_memory_peak_bytes"] = fast_memory_peak.count;
  object["logits_digest"] = digest;
  return object;
}

}  // namespace vericache
