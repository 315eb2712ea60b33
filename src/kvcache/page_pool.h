#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/types.h"

namespace vericache {

// Resident pages live as long as their request; transient pages hold a full cache around a verify.
// Each kind has free lists of its own, so that short-lived pages never split the resident memory.
enum class PageKind : std::uint8_t { kResident, kTransient };

class PagePool;

// One page of a pool, given back when the handle goes. Move-only. The pool must outlive it.
class Page {
 public:
  Page() = default;
  Page(Page&& other) noexcept { Swap(other); }
  Page& operator=(Page&& other) noexcept {
    Page moved(std::move(other));
    Swap(moved);
    return *this;
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page();

  std::byte* data() const { return data_; }

 private:
  friend class PagePool;
  Page(PagePool* pool, std::byte* data, PageKind kind, std::size_t size)
      : pool_(pool), data_(data), kind_(kind), size_(size) {}
  void Swap(Page& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(kind_, other.kind_);
    std::swap(size_, other.size_);
  }

  PagePool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  PageKind kind_ = PageKind::kResident;
  std::size_t size_ = 0;
};

// One byte budget and the pages cut from it. Memory held from the system, free lists included,
// never exceeds the budget. Not thread-safe: the engine's thread allocates, workers only read and
// write.
class PagePool {
 public:
  explicit PagePool(Bytes budget) : budget_(budget) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  // A zeroed page of `size` bytes, aligned to a cache line; nullopt where the budget is used up.
  // Zeroed, since attention kernels multiply unwritten slots by zero and must not meet a NaN there.
  std::optional<Page> Allocate(PageKind kind, std::size_t size) {
    return Allocate(kind, size, /*zeroed=*/true);
  }
  // Likewise, for a page that is overwritten as a whole before it is read.
  std::optional<Page> AllocateUnwritten(PageKind kind, std::size_t size) {
    return Allocate(kind, size, /*zeroed=*/false);
  }

  Bytes budget() const { return budget_; }
  Bytes in_use() const { return in_use_[0] + in_use_[1]; }
  Bytes in_use(PageKind kind) const { return in_use_[static_cast<std::size_t>(kind)]; }
  // The most that was ever in use at once.
  Bytes peak() const { return peak_; }

 private:
  friend class Page;
  std::optional<Page> Allocate(PageKind kind, std::size_t size, bool zeroed);
  void Release(std::byte* data, PageKind kind, std::size_t size);
  void TrimFreeLists();

  struct Free {
    void operator()(std::byte* data) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  Bytes budget_;
  Bytes held_;  // from the system: in use and free
  std::array<Bytes, 2> in_use_;
  Bytes peak_;
  std::map<std::pair<PageKind, std::size_t>, std::vector<Memory>> free_;
};

}  // namespace vericache
