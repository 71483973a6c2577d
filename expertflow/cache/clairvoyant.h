// The fewest bytes that any cache of a given size could have read for a recorded run: what a policy's misses are
// compared with.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "expertflow/cache/expert_cache.h"

namespace ef {

/// All experts that one layer of one step asked for, owned (AccessEvent is the view of it that policies see).
struct LayerEvent {
  LayerId layer = 0;
  std::vector<ExpertId> experts;  ///< distinct
};

struct ClairvoyantResult {
  uint64_t accesses = 0;        ///< distinct experts asked for, over all events
  uint64_t bytes_accessed = 0;  ///< their slots
  uint64_t bytes_missed = 0;    ///< what was not in memory when it was asked for
};

/// Belady's rule with bypass, byte by byte: what is used again latest goes first, in part if that suffices, and what is
/// not worth keeping is not kept. An event's experts compete together. With slots of one size that divide the capacity
/// this is the optimum; otherwise no cache of whole slots can read less. Pages, pins and time are left out. warm: the
/// capacity is filled, free of charge, with what serves best before the first event; otherwise the cache starts empty.
ClairvoyantResult clairvoyant_misses(const CacheGeometry& geometry, std::span<const LayerEvent> events,
                                     uint64_t capacity_bytes, bool warm);

}  // namespace ef
