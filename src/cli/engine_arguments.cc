#include "cli/engine_arguments.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/memory.h"
#include "base/threads.h"
#include "model/repeat.h"

namespace vericache {
namespace {

// "16", or "auto": adapted, and at most 32.
void SetDraftLength(const std::string& text, EngineOptions& options) {
  constexpr int kLongest = 32;
  options.adaptive_draft = text == "auto";
  if (options.adaptive_draft) {
    options.draft_length = kLongest;
    return;
  }
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), options.draft_length);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UserError("--draft-length must be a number or auto, not '" + text + "'");
  }
}

// A size, as an option's value. Throws UserError, naming the option.
Bytes SizeOf(const std::string& option, const std::string& text) {
  try {
    return ParseBytes(text);
  } catch (const UserError& error) {
    throw UserError(option + ": " + error.what());
  }
}

// "2GB/s" or "2GB"; a number alone would be bytes, which nobody means.
double ParseBandwidth(std::string text) {
  const std::string option = "--link-bandwidth";
  if (!text.empty() && text.find_first_not_of("0123456789.") == std::string::npos &&
      text.find_first_not_of("0.") != std::string::npos) {
    throw UserError(option + " needs a unit, such as " + text + "MB/s");
  }
  if (text.ends_with("/s")) {
    text.resize(text.size() - 2);
  }
  return static_cast<double>(SizeOf(option, text).count);
}

}  // namespace

Policy PolicyOf(const std::string& name) {
  const std::optional<Policy> policy = ParsePolicy(name);
  if (!policy) {
    throw UserError("unknown policy '" + name + "'; known are " + PolicyNames());
  }
  return *policy;
}

std::vector<Policy> PoliciesOf(const std::vector<std::string>& names) {
  std::vector<Policy> policies(names.size());
  std::transform(names.begin(), names.end(), policies.begin(), PolicyOf);
  return policies;
}

namespace {

std::string KnownCompressors() {
  std::string known;
  for (const std::string& name : CompressorNames()) {
    known += (known.empty() ? "" : ", ") + name;
  }
  return known;
}

}  // namespace

EngineArguments::EngineArguments() { options.threads = HardwareThreads(); }

void EngineArguments::AddTo(CLI::App& command) {
  command
      .add_option("--compressor", options.compressor,
                  "A drop method, a format (or one each: k=q8,v=q4), both (snapkv+kivi4), none, or "
                  "profile:FILE; with options where wanted: snapkv:window=64,kernel=7. Known are " +
                      KnownCompressors())
      ->capture_default_str();
  command.add_option("--keep", options.keep, "Share of the positions to keep, in (0, 1]")
      ->capture_default_str();
  command
      .add_option("--draft-length", draft_length,
                  "Tokens drafted in a round; auto: as many as pay, from what was accepted")
      ->capture_default_str();
  command
      .add_option("--prefill-chunk", options.prefill_chunk,
                  "Prompt tokens computed in one iteration")
      ->capture_default_str();
  command.add_option("--fast-memory", fast_memory,
                     "Budget of fast memory, such as 512MiB (default: what is free)");
  command
      .add_option("--weights-share", options.weights_share,
                  "Share of the weights that counts against --fast-memory, in [0, 1]")
      ->capture_default_str();
  command
      .add_option(
          "--full-store", full_store,
          "Where full caches live while requests draft, and under full those without a turn "
          "in fast memory: memory, or disk:PATH")
      ->capture_default_str();
  command.add_option("--link-bandwidth", link_bandwidth,
                     "Emulate a link of this speed from store to fast memory, such as 2GB/s "
                     "(default: memory is read in place, a disk as fast as it goes)");
  command.add_option("--prefixes", prefixes,
                     "Keep the full caches of prompts' beginnings, and start from them where a "
                     "prompt begins alike: memory:1GiB, or disk:PATH, which outlives the run");
  weights.AddTo(command);
  command.add_option("-t,--threads", options.threads, "Threads")->capture_default_str();
}

void EngineArguments::Resolve() {
  SetDraftLength(draft_length, options);
  options.full_store = ParseStoreName(full_store);
  if (!link_bandwidth.empty()) {
    options.link_bandwidth = ParseBandwidth(link_bandwidth);
  }
  if (!fast_memory.empty()) {
    options.fast_memory = SizeOf("--fast-memory", fast_memory);
  }
  ValidateOptions(options);
}

void EngineArguments::ResolveRest(const Tokenizer& tokenizer) {
  options.repeat = RepeatPromptOf(tokenizer);
  if (fast_memory.empty()) {
    options.fast_memory = AvailableMemory();
  }
  if (!prefixes.empty()) {
    options.prefixes = MakePrefixStore(prefixes);
  }
}

}  // namespace vericache
