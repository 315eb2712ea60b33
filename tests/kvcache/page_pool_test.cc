#include "kvcache/page_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace vericache {
namespace {

constexpr std::uint64_t RoundUp(std::size_t size) { return (size + 63) / 64 * 64; }

bool IsZero(const Page& page, std::size_t size) {
  return std::all_of(page.data(), page.data() + size,
                     [](std::byte b) { return b == std::byte{0}; });
}

struct Held {
  Page page;
  PageKind kind;
  std::size_t size;
};

Bytes Sum(const std::vector<Held>& pages, PageKind kind) {
  Bytes sum;
  for (const Held& held : pages) {
    sum += held.kind == kind ? Bytes{RoundUp(held.size)} : Bytes{0};
  }
  return sum;
}

RC_GTEST_PROP(PagePool, CountsEveryPageAndNeverExceedsItsBudget, ()) {
  const Bytes budget{*rc::gen::inRange<std::uint64_t>(0, 20000)};
  PagePool pool(budget);
  std::vector<Held> pages;
  Bytes peak;
  for (const auto& [take, number] :
       *rc::gen::resize(200, rc::gen::arbitrary<std::vector<std::pair<bool, std::uint16_t>>>())) {
    if (take) {
      const PageKind kind = number % 2 == 0 ? PageKind::kResident : PageKind::kTransient;
      const std::size_t sizes[] = {64, 100, 640, 1000, 4096};
      const std::size_t size = sizes[number / 2 % 5];
      std::optional<Page> page = pool.Allocate(kind, size);
      // Free lists are given back to the system first, so only pages in use can be in the way.
      const Bytes used = Sum(pages, PageKind::kResident) + Sum(pages, PageKind::kTransient);
      RC_ASSERT(page.has_value() == (used + Bytes{RoundUp(size)} <= budget));
      if (page) {
        RC_ASSERT(reinterpret_cast<std::uintptr_t>(page->data()) % 64 == 0U);
        RC_ASSERT(IsZero(*page, size));
        std::memset(page->data(), 0xFF, size);
        pages.push_back({std::move(*page), kind, size});
      }
    } else if (!pages.empty()) {
      pages.erase(pages.begin() + number % static_cast<int>(pages.size()));
    }
    peak = std::max(peak, pool.in_use());
    RC_ASSERT(pool.in_use(PageKind::kResident) == Sum(pages, PageKind::kResident));
    RC_ASSERT(pool.in_use(PageKind::kTransient) == Sum(pages, PageKind::kTransient));
    RC_ASSERT(pool.in_use() <= budget);
    RC_ASSERT(pool.peak() == peak);
  }
  pages.clear();
  RC_ASSERT(pool.in_use() == Bytes{0});
  // Everything came back: one page may now be as large as the budget.
  RC_ASSERT(pool.Allocate(PageKind::kTransient, budget.count / 64 * 64).has_value());
}

TEST(PagePool, KeepsItsPagesApart) {
  PagePool pool(Bytes{6400});
  std::vector<Page> pages;
  while (std::optional<Page> page = pool.Allocate(PageKind::kResident, 640)) {
    std::memset(page->data(), static_cast<int>(pages.size()) + 1, 640);
    pages.push_back(std::move(*page));
  }
  ASSERT_EQ(pages.size(), 10U);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    EXPECT_TRUE(std::all_of(pages[i].data(), pages[i].data() + 640,
                            [&](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
  }
}

TEST(PagePool, ExhaustionIsAnAnswerAndPassesWhenAPageIsFreed) {
  PagePool pool(Bytes{1000});
  std::optional<Page> first = pool.Allocate(PageKind::kResident, 512);
  ASSERT_TRUE(first);
  EXPECT_FALSE(pool.Allocate(PageKind::kResident, 512));
  EXPECT_FALSE(pool.Allocate(PageKind::kTransient, 512));
  EXPECT_EQ(pool.in_use(), Bytes{512});
  first.reset();
  EXPECT_TRUE(pool.Allocate(PageKind::kTransient, 512));
}

TEST(PagePool, FreedPagesOfOneKindAndSizeServeTheOther) {
  PagePool pool(Bytes{4096});
  pool.Allocate(PageKind::kTransient, 4096).reset();
  EXPECT_TRUE(pool.Allocate(PageKind::kResident, 4096));
  pool.Allocate(PageKind::kTransient, 64).reset();
  EXPECT_TRUE(pool.Allocate(PageKind::kTransient, 4096));
}

TEST(PagePool, ZeroesAPageThatIsUsedAgain) {
  PagePool pool(Bytes{64});
  std::optional<Page> page = pool.Allocate(PageKind::kResident, 64);
  ASSERT_TRUE(page);
  std::memset(page->data(), 0xFF, 64);
  page.reset();
  page = pool.Allocate(PageKind::kResident, 64);
  ASSERT_TRUE(page);
  EXPECT_TRUE(IsZero(*page, 64));
}

TEST(PagePool, RemembersItsPeak) {
  PagePool pool(Bytes{4096});
  {
    const auto one = pool.Allocate(PageKind::kResident, 1024);
    const auto two = pool.Allocate(PageKind::kTransient, 1024);
    EXPECT_EQ(pool.peak(), Bytes{2048});
  }
  const auto three = pool.Allocate(PageKind::kResident, 64);
  EXPECT_EQ(pool.peak(), Bytes{2048});
  EXPECT_EQ(pool.in_use(), Bytes{64});
}

TEST(PagePool, WithoutABudgetHasNoPage) {
  PagePool pool(Bytes{0});
  EXPECT_FALSE(pool.Allocate(PageKind::kResident, 1));
  EXPECT_EQ(pool.peak(), Bytes{0});
}

TEST(Page, IsGivenBackOnceHoweverItMoves) {
  PagePool pool(Bytes{256});
  std::optional<Page> page = pool.Allocate(PageKind::kResident, 64);
  ASSERT_TRUE(page);
  std::byte* const data = page->data();
  Page moved(std::move(*page));
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(page->data(), nullptr);  // NOLINT(bugprone-use-after-move): a moved page holds nothing
  page.reset();
  EXPECT_EQ(pool.in_use(), Bytes{64});

  Page other = std::move(*pool.Allocate(PageKind::kTransient, 128));
  EXPECT_EQ(pool.in_use(), Bytes{192});
  other = std::move(moved);  // gives back what it held
  EXPECT_EQ(other.data(), data);
  EXPECT_EQ(pool.in_use(PageKind::kTransient), Bytes{0});
  EXPECT_EQ(pool.in_use(PageKind::kResident), Bytes{64});

  Page& same = other;
  other = std::move(same);  // to itself: nothing happens
  EXPECT_EQ(other.data(), data);
  other = Page();
  EXPECT_EQ(pool.in_use(), Bytes{0});
}

}  // namespace
}  // namespace vericache
