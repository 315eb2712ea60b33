#include <cstring>
#include <vector>

#include "base/check.h"
#include "store/full_store.h"

namespace vericache {
namespace {

class MemoryCache : public StoredCache {
 public:
  explicit MemoryCache(GroupShape shape) : shape_(shape) {}

  void Save(int group, std::span<const std::byte* const> pages) override {
    const auto index = static_cast<std::size_t>(group);
    Check(index <= groups_.size(), "groups are first saved in ascending order");
    try {
      if (index == groups_.size()) {
        groups_.push_back(std::make_unique_for_overwrite<std::byte[]>(shape_.bytes()));
      }
    } catch (const std::bad_alloc&) {
      throw StoreError("the full store in memory has no room for " + HumanBytes({shape_.bytes()}) +
                       " more");
    }
    for (std::size_t layer = 0; layer < pages.size(); ++layer) {
      std::memcpy(groups_[index].get() + layer * shape_.page_bytes, pages[layer],
                  shape_.page_bytes);
    }
  }

  void Load(int group, std::span<std::byte* const> pages) override {
    const std::byte* from = groups_.at(static_cast<std::size_t>(group)).get();
    for (std::size_t layer = 0; layer < pages.size(); ++layer) {
      std::memcpy(pages[layer], from + layer * shape_.page_bytes, shape_.page_bytes);
    }
  }

 private:
  GroupShape shape_;
  std::vector<std::unique_ptr<std::byte[]>> groups_;
};

class MemoryStore : public FullStore {
 public:
  explicit MemoryStore(GroupShape shape) : shape_(shape) {}
  std::unique_ptr<StoredCache> Create() override { return std::make_unique<MemoryCache>(shape_); }

 private:
  GroupShape shape_;
};

}  // namespace

std::unique_ptr<FullStore> MakeMemoryStore(GroupShape shape) {
  return std::make_unique<MemoryStore>(shape);
}

}  // namespace vericache
