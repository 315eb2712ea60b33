// Prompts that begin as an earlier one did start from its full cache.
#pragma once

#include <memory>
#include <string>

#include "engine/request.h"
#include "model/model.h"
#include "store/link.h"
#include "store/prefix_store.h"

namespace vericache {

// What "memory:1GiB" or "disk:PATH" names, for this model. Throws UserError, listing both, for
// anything else, or where the folder cannot be used.
std::shared_ptr<PrefixStore> MakePrefixStore(const std::string& text, const Model& model);

class Prefixes {
 public:
  // Chunks are told apart by everything that decides the bits of their keys and values: the
  // weights, the vocabulary, the kernels, the format.
  Prefixes(std::shared_ptr<PrefixStore> store, const Model& model, Link& link);

  // Starts to load what is kept of the prompt's beginning into its full cache, which is empty, but
  // leaves at least `computed` tokens to compute. `due`: see Transfer. False where nothing is kept.
  bool StartLoad(Request& request, int computed, std::int64_t due);

  // Starts to keep the whole chunks of a prefilled prompt that are not kept yet.
  void StartSave(Request& request);

  // Once a load has ended: the tokens that are in the full cache now; 0 where it failed, and then
  // the full cache is as good as empty.
  static int Loaded(Request& request);

 private:
  std::shared_ptr<PrefixStore> store_;
  PrefixKey root_;
  Link& link_;
};

}  // namespace vericache
