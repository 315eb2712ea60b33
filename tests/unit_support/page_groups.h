// Random page groups, and their way in and out of a stored cache.
#pragma once

#include <cstddef>
#include <vector>

#include "store/full_store.h"
#include "unit_support/random_data.h"

namespace vericache::testing {

// The pages of a group.
using Group = std::vector<std::vector<std::byte>>;

inline Group RandomGroup(GroupShape shape, RandomData& random) {
  Group group(Size(shape.layers), std::vector<std::byte>(shape.page_bytes));
  for (auto& page : group) {
    for (std::byte& byte : page) {
      byte = static_cast<std::byte>(random.Below(256));
    }
  }
  return group;
}

inline void Save(StoredCache& cache, int number, const Group& group) {
  std::vector<const std::byte*> pages;
  for (const auto& page : group) {
    pages.push_back(page.data());
  }
  cache.Save(number, pages);
}

inline Group Load(StoredCache& cache, int number, GroupShape shape) {
  Group group(Size(shape.layers), std::vector<std::byte>(shape.page_bytes));
  std::vector<std::byte*> pages;
  for (auto& page : group) {
    pages.push_back(page.data());
  }
  cache.Load(number, pages);
  return group;
}

}  // namespace vericache::testing
