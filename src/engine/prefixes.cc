#include "engine/prefixes.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "attention/kernel.h"
#include "base/error.h"
#include "engine/memory_plan.h"
#include "model/backend.h"

namespace vericache {
namespace {

constexpr int kGroups = kPrefixTokens / kPageSlots;
static_assert(kPrefixTokens % kPageSlots == 0);

std::string Identity(const Model& model) {
  std::ostringstream identity;
  identity << model.file().Fingerprint() << ' ' << SelectKernel().name << " f16";
  if (model.form() != WeightForm{}) {
    identity << ' ' << Name(model.form());
  }
  for (const auto& [kind, rule] : model.rules()) {
    identity << ' ' << kind.type << ':' << rule.pad_to << ',' << rule.group;
  }
  identity << ' ' << GgmlInstructionSets();
  return identity.str();
}

// The pages that hold a chunk of a full cache.
std::vector<std::byte*> PagesOf(const KvCache& cache, int chunk) {
  std::vector<std::byte*> pages;
  for (int group = 0; group < kGroups; ++group) {
    const std::vector<std::byte*> more = cache.GroupPages(chunk * kGroups + group);
    pages.insert(pages.end(), more.begin(), more.end());
  }
  return pages;
}

// Those of chunks [first, end).
std::vector<std::vector<std::byte*>> PagesOf(const KvCache& cache, int first, int end) {
  std::vector<std::vector<std::byte*>> pages;
  for (int chunk = first; chunk < end; ++chunk) {
    pages.push_back(PagesOf(cache, chunk));
  }
  return pages;
}

int Common(std::span<const PrefixKey> a, std::span<const PrefixKey> b) {
  return static_cast<int>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// How many chunks of `keys` are in the full cache of the request now.
int ChunksOf(const Request& request, std::span<const PrefixKey> keys) {
  if (request.finished || !request.full || request.reload) {
    return 0;
  }
  const auto there = std::min(request.prefix_keys.size(),
                              static_cast<std::size_t>(request.prefilled / kPrefixTokens));
  return Common(keys, std::span(request.prefix_keys).first(there));
}

// The chunks of a prompt that need not be computed: `computed` tokens at its end are.
std::span<const PrefixKey> Usable(const Request& request, int computed) {
  const int most = std::max(0, request.prompt_size() - computed) / kPrefixTokens;
  return std::span(request.prefix_keys)
      .first(std::min(request.prefix_keys.size(), static_cast<std::size_t>(most)));
}

}  // namespace

std::shared_ptr<PrefixStore> MakePrefixStore(const std::string& text) {
  PrefixStoreOptions options;
  const std::string memory = "memory:";
  const std::string disk = "disk:";
  if (text.starts_with(memory)) {
    options.memory = ParseBytes(text.substr(memory.size()));
  } else if (text.starts_with(disk) && text.size() > disk.size()) {
    options.folder = text.substr(disk.size());
  } else {
    throw UserError("unknown place for prefixes '" + text +
                    "'; known are memory:SIZE, such as memory:1GiB, and disk:PATH");
  }
  return std::make_shared<PrefixStore>(std::move(options));
}

Prefixes::Prefixes(std::shared_ptr<PrefixStore> store, const Model& model,
                   std::string compressed_as, Link& link)
    : store_(std::move(store)),
      root_(PrefixRoot(Identity(model))),
      compressed_as_(std::move(compressed_as)),
      page_bytes_(GroupOf(model, {}).page_bytes),
      link_(link) {}

bool Prefixes::Has(const PrefixKey& key) const { return store_->Lookup({&key, 1}) == 1; }

std::optional<SharedPrompt> Prefixes::Coming(Request& request,
                                             const std::map<int, std::unique_ptr<Request>>& others,
                                             int computed) const {
  request.prefix_keys = PrefixKeys(request.prompt.tokens, root_);
  const std::span<const PrefixKey> usable = Usable(request, computed);
  int most = store_->Lookup(usable);
  for (const auto& [index, other] : others) {
    most = std::max(most, ChunksOf(*other, usable));
  }
  std::optional<SharedPrompt> coming;
  for (const auto& [index, other] : others) {
    if (other->finished || other->prefilled == other->prompt_size()) {
      continue;
    }
    if (const int chunks = Common(usable, other->prefix_keys); chunks > most) {
      most = chunks;
      coming = {.request = index, .tokens = chunks * kPrefixTokens};
    }
  }
  return coming;
}

bool Prefixes::StartLoad(Request& request, const std::map<int, std::unique_ptr<Request>>& others,
                         int computed, std::int64_t due) {
  const std::span<const PrefixKey> usable = Usable(request, computed);
  const Request* holder = nullptr;
  int shared = 0;
  for (const auto& [index, other] : others) {
    const int chunks = ChunksOf(*other, usable);
    if (chunks > shared) {
      shared = chunks;
      holder = other.get();
    }
  }
  if (holder != nullptr) {
    request.full->ShareFront(*holder->full, shared * kPrefixTokens);
  }
  request.shared_tokens = request.prefix_tokens = shared * kPrefixTokens;
  int chunks = std::max(0, store_->Lookup(usable) - shared);
  if (chunks > 0 && !request.full->ExtendForLoad(chunks * kPrefixTokens)) {
    chunks = 0;
  }
  request.prefix_tokens += chunks * kPrefixTokens;
  const PrefixKey whole = WholeKey(request.prompt.tokens, root_, compressed_as_);
  const bool compressed = !compressed_as_.empty() && request.prefix_tokens > 0 && Has(whole);
  if (chunks == 0 && !compressed) {
    return shared > 0;
  }
  request.prefix = std::make_shared<Transfer>(
      Transfer::Direction::kToFastMemory, chunks + (compressed ? 1 : 0), due,
      [this, &request, shared, chunks, whole,
       pages = PagesOf(*request.full, shared, shared + chunks)](int step) -> Bytes {
        if (step == chunks) {
          return LoadCompressed(request, whole);
        }
        return LoadChunk(request.prefix_keys[static_cast<std::size_t>(shared + step)],
                         pages[static_cast<std::size_t>(step)]);
      });
  link_.Start(request.prefix);
  return true;
}

Bytes Prefixes::LoadChunk(const PrefixKey& key, std::span<std::byte* const> pages) const {
  const std::shared_ptr<const std::vector<std::byte>> data = store_->Load(key);
  if (data->size() != pages.size() * page_bytes_) {
    throw StoreError("a kept prefix has another size than it should");
  }
  const std::byte* from = data->data();
  for (std::byte* page : pages) {
    std::memcpy(page, from, page_bytes_);
    from += page_bytes_;
  }
  return {data->size()};
}

// Where it fails the cache is made anew.
Bytes Prefixes::LoadCompressed(Request& request, const PrefixKey& key) const {
  try {
    request.compressed_bytes = store_->Load(key);
    return {request.compressed_bytes->size()};
  } catch (const StoreError&) {
    return {};
  }
}

int Prefixes::Loaded(Request& request) {
  const std::shared_ptr<Transfer> transfer = std::exchange(request.prefix, nullptr);
  if (transfer && transfer->error()) {
    request.prefix_tokens = request.shared_tokens;
  }
  return request.prefix_tokens;
}

void Prefixes::StartSave(Request& request) {
  const int first = store_->Lookup(request.prefix_keys);
  const int chunks = static_cast<int>(request.prefix_keys.size()) - first;
  const PrefixKey whole = WholeKey(request.prompt.tokens, root_, compressed_as_);
  std::vector<std::byte> compressed;
  if (!compressed_as_.empty() && request.compressed && !request.prefix_keys.empty() &&
      !Has(whole)) {
    compressed = request.compressed->Saved();
  }
  if (chunks == 0 && compressed.empty()) {
    return;
  }
  const int steps = chunks + (compressed.empty() ? 0 : 1);
  request.prefix = std::make_shared<Transfer>(
      Transfer::Direction::kToStore, steps, Transfer::kAtOnce,
      [this, &request, first, chunks, whole, pages = PagesOf(*request.full, first, first + chunks),
       compressed = std::move(compressed)](int step) -> Bytes {
        if (step == chunks) {
          store_->Save(whole, compressed);
          return {compressed.size()};
        }
        std::vector<std::byte> data;
        data.reserve(pages[static_cast<std::size_t>(step)].size() * page_bytes_);
        for (const std::byte* page : pages[static_cast<std::size_t>(step)]) {
          data.insert(data.end(), page, page + page_bytes_);
        }
        store_->Save(request.prefix_keys[static_cast<std::size_t>(first + step)], data);
        return {data.size()};
      });
  link_.Start(request.prefix);
}

}  // namespace vericache
