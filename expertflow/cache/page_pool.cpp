#include "expertflow/cache/page_pool.h"

#include "expertflow/base/errors.h"

namespace ef {

PagePool::PagePool(uint32_t pages) : pages_(pages), free_pages_(pages) {
  if (pages > 0) insert({0, pages});
}

std::optional<Extent> PagePool::allocate(uint32_t pages, bool from_top) {
  EF_DCHECK(pages > 0);
  const auto it = by_size_.lower_bound({pages, 0});
  if (it == by_size_.end()) return std::nullopt;
  const Extent found{it->second, it->first};
  remove(found);
  const uint32_t rest = found.pages - pages;
  if (rest > 0) insert(from_top ? Extent{found.first, rest} : Extent{found.first + pages, rest});
  free_pages_ -= pages;
  return Extent{from_top ? found.first + rest : found.first, pages};
}

void PagePool::release(Extent extent) {
  EF_DCHECK(extent.pages > 0 && extent.end() <= pages_);
  free_pages_ += extent.pages;
  if (const auto before = free_before(extent.first)) {
    remove(*before);
    extent = {before->first, before->pages + extent.pages};
  }
  if (const auto after = free_after(extent.end())) {
    remove(*after);
    extent.pages += after->pages;
  }
  insert(extent);
}

std::optional<Extent> PagePool::free_before(uint32_t page) const {
  auto it = free_.lower_bound(page);
  if (it == free_.begin()) return std::nullopt;
  --it;
  if (it->first + it->second != page) return std::nullopt;
  return Extent{it->first, it->second};
}

std::optional<Extent> PagePool::free_after(uint32_t page) const {
  const auto it = free_.find(page);
  if (it == free_.end()) return std::nullopt;
  return Extent{it->first, it->second};
}

void PagePool::insert(Extent extent) {
  free_.emplace(extent.first, extent.pages);
  by_size_.emplace(extent.pages, extent.first);
}

void PagePool::remove(Extent extent) {
  free_.erase(extent.first);
  by_size_.erase({extent.pages, extent.first});
}

}  // namespace ef
