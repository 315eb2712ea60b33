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
#include "ggml-cpu.h"

namespace vericache {
namespace {

constexpr int kGroups = kPrefixTokens / kPageSlots;
static_assert(kPrefixTokens % kPageSlots == 0);

std::string Identity(const Model& model) {
  std::ostringstream identity;
  identity << model.file().Fingerprint() << ' ' << SelectKernel().name << " f16";
  for (const auto& [type, rule] : model.rules()) {
    identity << ' ' << type << ':' << rule.pad_to << ',' << rule.group;
  }
  // ggml's paths, which its build and the processor choose.
  for (const int has : {ggml_cpu_has_avx2(), ggml_cpu_has_avx512(), ggml_cpu_has_avx512_vnni(),
                        ggml_cpu_has_avx512_bf16(), ggml_cpu_has_amx_int8()}) {
    identity << ' ' << has;
  }
  return identity.str();
}

std::vector<std::vector<std::byte*>> GroupsOf(const KvCache& cache, int chunk) {
  std::vector<std::vector<std::byte*>> groups;
  groups.reserve(static_cast<std::size_t>(kGroups));
  for (int group = 0; group < kGroups; ++group) {
    groups.push_back(cache.GroupPages(chunk * kGroups + group));
  }
  return groups;
}

// How many chunks of `keys` are in the full cache of the request now.
int ChunksOf(const Request& request, std::span<const PrefixKey> keys) {
  if (request.finished || !request.full || request.reload) {
    return 0;
  }
  const auto there = std::min(request.prefix_keys.size(),
                              static_cast<std::size_t>(request.prefilled / kPrefixTokens));
  const std::span<const PrefixKey> own = std::span(request.prefix_keys).first(there);
  return static_cast<int>(std::ranges::mismatch(keys, own).in1 - keys.begin());
}

}  // namespace

std::shared_ptr<PrefixStore> MakePrefixStore(const std::string& text, const Model& model) {
  PrefixStoreOptions options{.shape = GroupOf(model, {}), .groups = kGroups};
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

Prefixes::Prefixes(std::shared_ptr<PrefixStore> store, const Model& model, Link& link)
    : store_(std::move(store)), root_(PrefixRoot(Identity(model))), link_(link) {}

bool Prefixes::StartLoad(Request& request, const std::map<int, std::unique_ptr<Request>>& others,
                         int computed, std::int64_t due) {
  request.prefix_keys = PrefixKeys(request.prompt.tokens, root_);
  const int most = std::max(0, request.prompt_size() - computed) / kPrefixTokens;
  const std::span<const PrefixKey> usable =
      std::span(request.prefix_keys)
          .first(std::min(request.prefix_keys.size(), static_cast<std::size_t>(most)));
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
  const int chunks = store_->Lookup(usable) - shared;
  if (chunks <= 0 || !request.full->ExtendForLoad(chunks * kPrefixTokens)) {
    return shared > 0;
  }
  std::vector<std::vector<std::vector<std::byte*>>> pages;
  pages.reserve(static_cast<std::size_t>(chunks));
  for (int chunk = 0; chunk < chunks; ++chunk) {
    pages.push_back(GroupsOf(*request.full, shared + chunk));
  }
  request.prefix_tokens += chunks * kPrefixTokens;
  request.prefix =
      std::make_shared<Transfer>(Transfer::Direction::kToFastMemory, chunks, due,
                                 [store = store_, keys = request.prefix_keys, shared,
                                  pages = std::move(pages)](int step) -> Bytes {
                                   store->Load(keys[static_cast<std::size_t>(shared + step)],
                                               pages[static_cast<std::size_t>(step)]);
                                   return {store->chunk_bytes()};
                                 });
  link_.Start(request.prefix);
  return true;
}

int Prefixes::Loaded(Request& request) {
  const std::shared_ptr<Transfer> transfer = std::exchange(request.prefix, nullptr);
  if (transfer && transfer->error()) {
    request.prefix_tokens = request.shared_tokens;
  }
  return request.prefix_tokens;
}

void Prefixes::StartSave(Request& request) {
  const auto kept = static_cast<std::size_t>(store_->Lookup(request.prefix_keys));
  const auto first = std::min(kept, request.prefix_keys.size());
  const int chunks = static_cast<int>(request.prefix_keys.size() - first);
  if (chunks == 0) {
    return;
  }
  std::vector<std::vector<std::vector<std::byte*>>> pages;
  pages.reserve(static_cast<std::size_t>(chunks));
  for (int chunk = 0; chunk < chunks; ++chunk) {
    pages.push_back(GroupsOf(*request.full, static_cast<int>(first) + chunk));
  }
  request.prefix = std::make_shared<Transfer>(
      Transfer::Direction::kToStore, chunks, Transfer::kAtOnce,
      [store = store_, first, keys = request.prefix_keys, pages = std::move(pages),
       page_bytes = request.full->tail_layout().page_bytes()](int step) -> Bytes {
        const auto chunk = static_cast<std::size_t>(step);
        std::vector<std::byte> data(store->chunk_bytes());
        std::byte* to = data.data();
        for (const std::vector<std::byte*>& group : pages[chunk]) {
          for (const std::byte* page : group) {
            std::memcpy(to, page, page_bytes);
            to += page_bytes;
          }
        }
        store->Save(keys[first + chunk], data);
        return {data.size()};
      });
  link_.Start(request.prefix);
}

}  // namespace vericache
