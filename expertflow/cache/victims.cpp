#include "expertflow/cache/victims.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace ef {
namespace {

constexpr size_t kFree = std::numeric_limits<size_t>::max();

struct Piece {
  Extent extent;
  size_t rank = kFree;  // index of the victim, or kFree
  // Free pages cost nothing; among victims the earlier one goes.
  bool cheaper_than(const Piece& other) const {
    if ((rank == kFree) != (other.rank == kFree)) return rank == kFree;
    return rank < other.rank;
  }
};

class Marks {
 public:
  explicit Marks(const PagePool& pool) : pool_(pool) {}
  void add(Extent extent, size_t rank) { by_first_.emplace(extent.first, Piece{extent, rank}); }

  std::optional<Piece> before(uint32_t page) const {
    if (const auto free = pool_.free_before(page)) return Piece{*free};
    auto it = by_first_.lower_bound(page);
    if (it == by_first_.begin()) return std::nullopt;
    --it;
    return it->second.extent.end() == page ? std::optional(it->second) : std::nullopt;
  }
  std::optional<Piece> after(uint32_t page) const {
    if (const auto free = pool_.free_after(page)) return Piece{*free};
    const auto it = by_first_.find(page);
    return it == by_first_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  const PagePool& pool_;
  std::map<uint32_t, Piece> by_first_;
};

struct Window {
  std::vector<size_t> victims;
  uint32_t room = 0;  // pages, with the free ones
};

// Grows a window around the piece that was marked last until it holds `pages`, taking the cheaper neighbour each time.
std::optional<Window> window(const Marks& marks, Piece last, uint32_t pages) {
  std::deque<Piece> taken = {last};
  uint64_t total = last.extent.pages;
  while (total < pages) {
    const auto left = marks.before(taken.front().extent.first), right = marks.after(taken.back().extent.end());
    if (!left && !right) return std::nullopt;
    const bool take_left = left && (!right || left->cheaper_than(*right));
    total += take_left ? left->extent.pages : right->extent.pages;
    if (take_left) {
      taken.push_front(*left);
    } else {
      taken.push_back(*right);
    }
  }
  // A large neighbour may have made an earlier one unnecessary.
  while (taken.size() > 1 && taken.front().rank != last.rank && total - taken.front().extent.pages >= pages) {
    total -= taken.front().extent.pages;
    taken.pop_front();
  }
  while (taken.size() > 1 && taken.back().rank != last.rank && total - taken.back().extent.pages >= pages) {
    total -= taken.back().extent.pages;
    taken.pop_back();
  }
  Window out{{}, uint32_t(total)};
  for (const Piece& piece : taken)
    if (piece.rank != kFree) out.victims.push_back(piece.rank);
  return out;
}

// Whether slots of these sizes fill so many pages to the last one; many pages are nobody's.
bool filled_by(std::span<const uint32_t> sizes, uint32_t pages) {
  constexpr uint32_t kMost = 3;
  if (pages == 0) return true;
  if (sizes.empty() || pages > kMost * sizes.back()) return false;
  return std::any_of(sizes.begin(), sizes.end(),
                     [&](uint32_t size) { return size <= pages && filled_by(sizes, pages - size); });
}

// Whether slots of `pages` in the place of this one, with the free pages beside it, leave less unused than before.
bool closes_gap(const PagePool& pool, const Extent& victim, uint32_t pages, std::span<const uint32_t> sizes) {
  const auto left = pool.free_before(victim.first), right = pool.free_after(victim.end());
  const uint32_t before = left ? left->pages : 0, after = right ? right->pages : 0,
                 room = victim.pages + before + after;
  if (before + after == 0 || victim.pages == pages || room < pages) return false;
  if (filled_by(sizes, room - pages)) return true;
  return victim.pages < pages && !(before && filled_by(sizes, before)) && !(after && filled_by(sizes, after));
}

// Of the earliest, which are about equally dispensable.
std::optional<size_t> gap_closer(const PagePool& pool, std::span<const Victim> ordered, uint32_t pages,
                                 std::span<const uint32_t> sizes) {
  constexpr size_t kEarliest = 64;
  // Room that is there already would be taken before what the victim leaves.
  if (sizes.size() < 2 || pool.free_pages() == 0 || pool.largest_free() >= pages) return std::nullopt;
  for (size_t i = 0; i < std::min(ordered.size(), kEarliest); ++i)
    if (!ordered[i].gone && closes_gap(pool, ordered[i].extent, pages, sizes)) return i;
  return std::nullopt;
}

}  // namespace

bool fits_free(const PagePool& pool, uint32_t pages, std::span<const uint32_t> sizes) {
  const uint32_t found = pool.smallest_free(pages);
  if (found <= pages || sizes.size() < 2) return found > 0;
  return !filled_by(sizes, found) || filled_by(sizes, found - pages);
}

std::optional<std::vector<size_t>> choose_victims(const PagePool& pool, std::span<const Victim> ordered, size_t limit,
                                                  uint32_t pages, std::span<const uint32_t> sizes, bool no_gap) {
  if (fits_free(pool, pages, sizes)) return std::vector<size_t>{};
  const size_t end = std::min(ordered.size(), limit), early = (end + 1) / 2;
  if (const auto closer = gap_closer(pool, ordered.first(early), pages, sizes)) return std::vector<size_t>{*closer};
  // One of the same size leaves no gap behind. Only where all of these are worth much more than others do several go
  // for one, which turns room of one size into room of another.
  size_t equal = end;
  for (size_t i = 0; i < end && equal == end; ++i)
    if (!ordered[i].gone && ordered[i].extent.pages == pages) equal = i;
  if (equal < (no_gap ? end : early)) return std::vector<size_t>{equal};
  if (pool.largest_free() >= pages) return no_gap ? std::nullopt : std::optional(std::vector<size_t>{});
  Marks marks(pool);
  for (size_t i = 0; i < end; ++i) {
    if (ordered[i].gone) continue;
    if (i == equal) return std::vector<size_t>{equal};
    marks.add(ordered[i].extent, i);
    const auto chosen = window(marks, Piece{ordered[i].extent, i}, pages);
    if (chosen && (!no_gap || filled_by(sizes, chosen->room - pages))) return chosen->victims;
  }
  return std::nullopt;
}

}  // namespace ef
