// Contiguous extents of fixed pages: best fit, neighbours merged the moment they are free. Counts pages only, holds no
// memory.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace ef {

struct Extent {
  uint32_t first = 0, pages = 0;
  uint32_t end() const { return first + pages; }
  bool operator==(const Extent&) const = default;
};

class PagePool {
 public:
  explicit PagePool(uint32_t pages);

  /// Takes from the smallest free extent that holds it, the lowest one of equals; its head, or its tail if from_top.
  std::optional<Extent> allocate(uint32_t pages, bool from_top = false);
  void release(Extent extent);

  uint32_t pages() const { return pages_; }
  uint32_t free_pages() const { return free_pages_; }
  uint32_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  /// Pages of the smallest free extent of at least so many; 0: there is none.
  uint32_t smallest_free(uint32_t pages) const {
    const auto it = by_size_.lower_bound({pages, 0});
    return it == by_size_.end() ? 0 : it->first;
  }
  /// The free extent that ends at, or begins at, a page.
  std::optional<Extent> free_before(uint32_t page) const;
  std::optional<Extent> free_after(uint32_t page) const;

 private:
  void insert(Extent extent);
  void remove(Extent extent);

  uint32_t pages_, free_pages_;
  std::map<uint32_t, uint32_t> free_;                // first -> pages
  std::set<std::pair<uint32_t, uint32_t>> by_size_;  // {pages, first}
};

}  // namespace ef
