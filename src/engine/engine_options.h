#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/types.h"
#include "model/repeat.h"
#include "scheduler/policy.h"
#include "store/full_store.h"
#include "store/prefix_store.h"

namespace vericache {

struct EngineOptions {
  Policy policy = Policy::kVeriCache;
  std::string compressor = "snapkv";
  double keep = 0.2;            // share of the positions that a drop method keeps
  int draft_length = 16;        // of a round; the longest where it adapts
  bool adaptive_draft = false;  // each request's own, from what was accepted of it
  int batch = 1;                // requests in flight, at most
  int prefill_chunk = 512;      // rows of prefill in an iteration, at most
  int threads = 1;
  int turn = 64;  // tokens that a full cache stays in fast memory, at least, where they take turns
  Bytes fast_memory;         // budget for caches in fast memory, and for `weights_share`
  double weights_share = 0;  // of the weights' bytes that count against it, in [0, 1]
  // Where full caches live while they are not in fast memory. In memory and without a bandwidth
  // they are read in place; otherwise each verify has its full cache brought to fast memory first.
  StoreName full_store;
  std::optional<double> link_bandwidth;   // bytes/s; emulates a link of that speed
  std::shared_ptr<PrefixStore> prefixes;  // where prompts' beginnings are kept; may be none
  std::function<bool(TokenId)> is_end;    // tokens that end a text
  RepeatPrompt repeat;                    // for compressors that have the model repeat a prompt
};

// The share of a prompt of so many tokens that a drop method keeps: options.keep, but a page of
// slots at least, since fewer would free nothing.
double KeepOf(const EngineOptions& options, int prompt);

// Throws UserError, naming the option, where one is out of range or the compressor unknown.
void ValidateOptions(const EngineOptions& options);

}  // namespace vericache
