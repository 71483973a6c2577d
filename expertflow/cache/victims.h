// Which victims free a contiguous extent at the least harm. Slots of several sizes leave gaps between them that nothing
// fits; each is memory lost until it is closed. So the first choice is, of the earliest candidates, one of another size
// that closes such a gap; then the first of just the size wanted, if it is in the first half of the order. Else
// candidates are marked in order until free pages and marked slots make a run that is long enough; of that run only the
// part that is needed leaves.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/cache/page_pool.h"

namespace ef {

struct Victim {
  ExpertKey key;
  Extent extent;
  bool gone = false;
};

/// Indices into `ordered` of those to evict so that `pages` contiguous pages are free; nothing if all of the first
/// `limit` do not suffice. Victims that are gone already are skipped. sizes: of all slots there may be, in pages; free
/// pages that just hold others are left to them, where one of the same size can go instead. no_gap: nothing, too, where
/// free pages would be left over that no slots fill.
std::optional<std::vector<size_t>> choose_victims(const PagePool& pool, std::span<const Victim> ordered, size_t limit,
                                                  uint32_t pages, std::span<const uint32_t> sizes = {},
                                                  bool no_gap = false);

/// Whether a slot of so many pages finds room that no slot of another size fits better.
bool fits_free(const PagePool& pool, uint32_t pages, std::span<const uint32_t> sizes);

}  // namespace ef
