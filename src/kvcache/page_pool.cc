#include "kvcache/page_pool.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"

namespace vericache {
namespace {

constexpr std::size_t kAlignment = 64;

constexpr std::size_t RoundUp(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Page::~Page() {
  if (pool_ != nullptr) {
    pool_->Release(data_, kind_, size_);
  }
}

void PagePool::Free::operator()(std::byte* data) const {
  ::operator delete(data, std::align_val_t{kAlignment});
}

PagePool::~PagePool() { Check(in_use().count == 0, "every page was given back to its pool"); }

std::optional<Page> PagePool::Allocate(PageKind kind, std::size_t size, bool zeroed) {
  if (size > budget_.count) {
    return std::nullopt;
  }
  size = RoundUp(size);
  auto& list = free_[{kind, size}];
  Memory memory;
  if (!list.empty()) {
    memory = std::move(list.back());
    list.pop_back();
  } else {
    if (held_ + Bytes{size} > budget_) {
      TrimFreeLists();
    }
    if (held_ + Bytes{size} > budget_) {
      return std::nullopt;
    }
    memory.reset(static_cast<std::byte*>(::operator new(size, std::align_val_t{kAlignment})));
    held_ += Bytes{size};
  }
  if (zeroed) {
    std::memset(memory.get(), 0, size);
  }
  in_use_[static_cast<std::size_t>(kind)] += Bytes{size};
  peak_ = std::max(peak_, in_use());
  return Page(this, memory.release(), kind, size);
}

void PagePool::Release(std::byte* data, PageKind kind, std::size_t size) {
  in_use_[static_cast<std::size_t>(kind)] -= Bytes{size};
  free_[{kind, size}].emplace_back(data);
}

void PagePool::TrimFreeLists() {
  for (auto& [key, list] : free_) {
    held_ -= Bytes{key.second} * list.size();
    list.clear();
  }
}

}  // namespace vericache
