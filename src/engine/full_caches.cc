#include "engine/full_caches.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace vericache {
namespace {

std::vector<std::vector<std::byte*>> AllGroups(const KvCache& cache, int slots) {
  std::vector<std::vector<std::byte*>> groups;
  groups.reserve(static_cast<std::size_t>(PageGroups(slots)));
  for (int group = 0; group < PageGroups(slots); ++group) {
    groups.push_back(cache.GroupPages(group));
  }
  return groups;
}

}  // namespace

FullCaches::FullCaches(const StoreName& name, GroupShape shape, Link& link)
    : shape_(shape),
      store_(name.folder ? MakeDiskStore(*name.folder, shape) : MakeMemoryStore(shape)),
      link_(link) {}

void FullCaches::SaveAll(Request& request, int slots) {
  Check(!request.save, "one save at a time");
  const int from = std::exchange(request.saved_slots, slots) / kPageSlots;
  std::vector<std::vector<std::byte*>> groups = AllGroups(*request.full, slots);
  groups.erase(groups.begin(), groups.begin() + from);
  const int steps = static_cast<int>(groups.size());
  // The store makes the cache on the link's thread too: making a file takes time, and may fail.
  request.save = std::make_shared<Transfer>(
      Transfer::Direction::kToStore, steps, Transfer::kAtOnce,
      [this, &request, from, groups = std::move(groups)](int step) -> Bytes {
        if (!request.stored) {
          request.stored = store_->Create();
        }
        const std::vector<std::byte*>& pages = groups[static_cast<std::size_t>(step)];
        request.stored->Save(from + step,
                             std::vector<const std::byte*>(pages.begin(), pages.end()));
        return {shape_.bytes()};
      });
  link_.Start(request.save);
}

void FullCaches::SaveRows(Request& request, int slots) {
  Check(!request.save, "the save before has ended, since a reload came after it");
  const int from = std::exchange(request.saved_slots, slots) / kPageSlots;
  const int steps = PageGroups(slots) - from;
  request.rows_to_save.resize(static_cast<std::size_t>(steps) * shape_.bytes());
  std::byte* to = request.rows_to_save.data();
  for (int step = 0; step < steps; ++step) {
    for (const std::byte* page : request.full->GroupPages(from + step)) {
      std::memcpy(to, page, shape_.page_bytes);
      to += shape_.page_bytes;
    }
  }
  request.save = std::make_shared<Transfer>(
      Transfer::Direction::kToStore, steps, Transfer::kAtOnce,
      [this, &request, from](int step) -> Bytes {
        std::vector<const std::byte*> pages;
        const std::byte* page =
            request.rows_to_save.data() + static_cast<std::size_t>(step) * shape_.bytes();
        for (int layer = 0; layer < shape_.layers; ++layer, page += shape_.page_bytes) {
          pages.push_back(page);
        }
        request.stored->Save(from + step, pages);
        return {shape_.bytes()};
      });
  link_.Start(request.save);
}

void FullCaches::Reload(Request& request, int slots, std::int64_t due) {
  Check(!request.reload, "one reload at a time");
  std::vector<std::vector<std::byte*>> groups = AllGroups(*request.full, slots);
  const int steps = static_cast<int>(groups.size());
  request.reload = std::make_shared<Transfer>(
      Transfer::Direction::kToFastMemory, steps, due,
      [this, &request, groups = std::move(groups)](int step) -> Bytes {
        request.stored->Load(step, groups[static_cast<std::size_t>(step)]);
        return {shape_.bytes()};
      });
  link_.Start(request.reload);
}

std::optional<Move> FullCaches::Ended(Request& request) {
  const bool saved = request.save && request.save->done();
  if (!saved && !(request.reload && request.reload->done())) {
    return std::nullopt;
  }
  const std::shared_ptr<Transfer> transfer =
      std::exchange(saved ? request.save : request.reload, nullptr);
  Move move{.kind = saved ? Move::Kind::kSaved : Move::Kind::kReloaded,
            .bytes = transfer->bytes(),
            .seconds = transfer->seconds()};
  if (transfer->error()) {
    move.kind = Move::Kind::kFailed;
    move.error = *transfer->error();
  }
  return move;
}

}  // namespace vericache
