// Prompts that begin as an earlier one did start from its full cache, and one that is the same has
// its compressed cache, too.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/request.h"
#include "model/model.h"
#include "scheduler/scheduler.h"
#include "store/link.h"
#include "store/prefix_store.h"

namespace vericache {

// What "memory:1GiB" or "disk:PATH" names. Throws UserError, listing both, for anything else, or
// where the folder cannot be used.
std::shared_ptr<PrefixStore> MakePrefixStore(const std::string& text);

class Prefixes {
 public:
  // Chunks are told apart by everything that decides the bits of their keys and values: the
  // weights, the vocabulary, the kernels, the format. `compressed_as` names how a compressed cache
  // is made; empty where none is.
  Prefixes(std::shared_ptr<PrefixStore> store, const Model& model, std::string compressed_as,
           Link& link);

  // Of a prompt that is queued: which other one is about to compute more of its beginning, but for
  // `computed` tokens, than is there by now; and how much. Names its chunks in request.prefix_keys.
  std::optional<SharedPrompt> Coming(Request& request,
                                     const std::map<int, std::unique_ptr<Request>>& others,
                                     int computed) const;

  // Begins the full cache, which is empty, with what other requests have of the prompt's beginning
  // in theirs, by reference, and starts to load what is kept of the rest of it; but leaves at least
  // `computed` tokens to compute. Of a prompt that is kept as a whole the compressed cache is
  // loaded into request.compressed_bytes, too. `due`: see Transfer. False where there is nothing of
  // it.
  bool StartLoad(Request& request, const std::map<int, std::unique_ptr<Request>>& others,
                 int computed, std::int64_t due);

  // Starts to keep the whole chunks of a prefilled prompt, and its compressed cache where it has
  // one, as far as they are not kept yet.
  void StartSave(Request& request);

  // Once a load has ended, or where none was needed: the tokens that are in the full cache now, at
  // its front. Where the load failed these are those of other requests.
  static int Loaded(Request& request);

 private:
  bool Has(const PrefixKey& key) const;
  Bytes LoadChunk(const PrefixKey& key, std::span<std::byte* const> pages) const;
  Bytes LoadCompressed(Request& request, const PrefixKey& key) const;

  std::shared_ptr<PrefixStore> store_;
  PrefixKey root_;
  std::string compressed_as_;
  std::size_t page_bytes_;
  Link& link_;
};

}  // namespace vericache
