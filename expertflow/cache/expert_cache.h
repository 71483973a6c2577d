// The fast tier: which experts are near, where, and who must leave. It owns slots, pins, residency and the record of
// copies in flight; it moves no byte itself (transfer/ does) and leaves the order of victims to a policy.
//
// An expert is absent, in flight (a copy is filling its slot) or resident. Slots are extents of fixed pages in one
// pool, so layers of different slot sizes share it. What a step uses is pinned from the event that asked for it until
// release() (its arithmetic has ended) or end_step(). After release() it still goes last of all while the step is open:
// otherwise a pool smaller than one token's cycle would throw away each expert just before it is wanted again.
//
// All members are safe to call from several threads (one lock).
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/cache/access_counts.h"
#include "expertflow/cache/page_pool.h"
#include "expertflow/cache/policy.h"
#include "expertflow/cache/victims.h"

namespace ef {

/// Slot sizes by layer, and the page that they are rounded up to.
struct CacheGeometry {
  struct Layer {
    int experts = 0;  ///< 0: dense
    uint64_t slot_bytes = 0;
  };
  std::vector<Layer> layers;   ///< by LayerId
  uint64_t page_bytes = 4096;  ///< a power of two, 64 at least

  uint64_t footprint(LayerId layer) const;  ///< bytes of one slot in the pool
  uint64_t largest_footprint() const;       ///< the smallest pool that can work
  uint64_t total_footprint() const;         ///< the largest pool that is of use
  /// Bytes of the pool for a budget: whole pages, no more than total_footprint().
  uint64_t pool_bytes(uint64_t budget) const;
};

enum class ExpertState : uint8_t { kAbsent, kInFlight, kResident };
using StepId = uint64_t;

struct LayerCacheStats {
  uint64_t hits = 0, late_hits = 0, misses = 0, evictions = 0, bytes_filled = 0;
};
struct CacheStats {
  uint64_t hits = 0;       ///< distinct experts of layer events that were resident when asked for
  uint64_t late_hits = 0;  ///< ... that were in flight (not counted in hits)
  uint64_t misses = 0;     ///< ... that were absent
  uint64_t deferred = 0;   ///< misses that had to wait for a later wave
  uint64_t reserved = 0;   ///< experts that got a slot before anybody asked for them: reserve()
  uint64_t reserved_used = 0,
           reserved_late = 0;    ///< of them, asked for by their layer's next event; still in flight then
  uint64_t reserved_wasted = 0;  ///< of them, not asked for by it
  uint64_t reserved_evicted = 0, reserved_evicted_bytes = 0;  ///< of them, evicted before anybody asked; bytes of slots
  uint64_t reserved_ready_bytes = 0;  ///< bytes of slots of those that were resident when first asked for
  uint64_t fills = 0, failed_fills = 0, cancelled_fills = 0, evictions = 0;
  uint64_t eager_evictions = 0;  ///< of them, at once after use (Request::eager)
  uint64_t bytes_filled = 0;     ///< of slots
  uint64_t pool_bytes = 0, bytes_in_use = 0, bytes_in_flight = 0;
  uint64_t largest_free_bytes = 0;  ///< longest extent of the pool that holds no slot
  uint64_t residents = 0, in_flight = 0;
  uint64_t pinned = 0;  ///< of both, those that an open step uses now
  std::vector<LayerCacheStats> layers;
  double hit_rate() const;  ///< hits of all accesses; 0 before the first
};

struct ExpertCacheOptions {
  /// Share of the pool that experts of transient events may hold once it is full: a long prefill does not flush the
  /// decode set.
  double transient_share = 0.25;
  bool host_memory = true;  ///< false: never touched from here, so not poisoned either
};

class ExpertCache {
 public:
  /// memory: the pool, of which whole pages are used; it must outlive the cache. ConfigError with the numbers if the
  /// largest slot does not fit.
  ExpertCache(CacheGeometry geometry, std::unique_ptr<EvictionPolicy> policy, std::span<std::byte> memory,
              ExpertCacheOptions options = {});
  ~ExpertCache();
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;

  StepId begin_step();
  void end_step(StepId step);

  /// What a step may use. fill: the caller must have the slot filled, and complete() or fail() called for it.
  struct Grant {
    ExpertId expert = -1;
    std::span<std::byte> slot;
    ExpertState state = ExpertState::kAbsent;  ///< resident, or in flight
    bool fill = false;
  };
  struct Request {
    StepId step = 0;
    LayerId layer = 0;
    std::span<const ExpertId> experts;  ///< distinct
    std::span<const int32_t> tokens;    ///< rows of each
    bool transient = false;             ///< many rows at once: what it brings in leaves first
    int64_t rows = 0;                   ///< of the step; 0: unknown
    bool eager = false;                 ///< transient: and at once, when the event has used it
  };
  /// One layer's event, at once: pins the residents and those in flight, and gives slots to as many of the absent as
  /// fit. The rest goes to `deferred`: release() what has been computed, then ask again with grant().
  void open(const Request& request, std::vector<Grant>& granted, std::vector<ExpertId>& deferred);
  /// Another wave of the same event; what is granted leaves `deferred`. Grants at least one if nothing is pinned or in
  /// flight.
  void grant(const Request& request, std::vector<ExpertId>& deferred, std::vector<Grant>& granted);
  void release(StepId step, ExpertKey key);

  /// A slot for an expert that nobody has asked for yet; none if it is near already, or if only experts of open steps
  /// could make room. `current` is the layer being run.
  /// The layer's next event judges it: what it does not ask for is the first to leave.
  std::optional<Grant> reserve(ExpertKey key, LayerId current);
  /// A slot in free memory for an expert that is not near; nobody has to leave for it.
  std::optional<Grant> preload(ExpertKey key);
  /// What is likely to be asked for soon, of all layers that are named. The policy hears it; and whatever the policy,
  /// residents that are more likely than not (kLikely) go after all others but those of open steps, until their layer's
  /// next event or the next word about the layer.
  void predict(std::span<const std::pair<ExpertKey, float>> likely);
  /// What the layer's router says of its coming event (EvictionPolicy::on_scores).
  void note_scores(LayerId layer, std::span<const std::pair<ExpertId, float>> probable);
  bool wants_scores() const { return policy_->wants_scores(); }
  /// Since the beginning; from any thread, no lock.
  const AccessCounts& counts() const { return counts_; }
  /// Bytes of the slots that reserve() gave out and no event has judged yet.
  uint64_t reserved_bytes() const;

  // The copy's side.
  void complete(ExpertKey key);
  /// The slot is free again. A null error means cancelled. The error stays with the expert until it is asked for again.
  void fail(ExpertKey key, std::exception_ptr error);

  /// Returns once one of keys is no longer in flight.
  void wait_any(std::span<const ExpertKey> keys);
  /// Returns once anything was completed, failed, released or ended since `seen`; the new count.
  uint64_t wait_change(uint64_t seen);
  uint64_t changes() const;

  struct Look {
    ExpertState state = ExpertState::kAbsent;
    std::span<const std::byte> slot;  ///< empty unless resident
    std::exception_ptr error;         ///< of the last copy, if it failed
  };
  Look look(ExpertKey key) const;
  /// First page of a resident expert, or -1: the flat table [layer][expert] that a device-side planner reads. No lock.
  int32_t page_of(ExpertKey key) const { return table_[index_of(key)].load(std::memory_order_acquire); }

  /// Drops every resident expert that is not pinned, and changes the end of free extents that slots are cut from, so
  /// that experts come back elsewhere (tests of moves).
  void evict_all();
  /// Drops experts in the policy's own order, whatever open steps have used, until slots take no more than so many
  /// bytes or whoever is left is pinned or in flight. For a replay that knows what is not worth keeping.
  void trim(uint64_t bytes, LayerId current);

  const CacheGeometry& geometry() const { return geometry_; }
  uint64_t pool_bytes() const { return uint64_t(pool_.pages()) * geometry_.page_bytes; }
  std::string_view policy_name() const { return policy_->name(); }
  PolicyCounters policy_counters() const;
  CacheStats stats() const;

 private:
  struct Entry {
    ExpertState state = ExpertState::kAbsent;
    bool transient = false;
    bool eager = false;     // brought in by an event that has nothing leave later
    bool reserved = false;  // its layer's event has not come yet
    bool unused = false;    // reserved, and nobody has asked for it yet
    bool likely = false;    // predicted for its layer's next event
    uint32_t pins = 0;
    Extent extent;
    StepId touched_step = 0;     // last step that asked for it
    uint64_t touched_event = 0;  // number of that event
    std::exception_ptr error;
  };
  /// Who may leave, in order: first what transient events brought in, then the policy's order, then what is predicted,
  /// last what open steps used.
  struct Ranking {
    bool valid = false;
    std::vector<Victim> ordered;
    size_t transient = 0, plain = 0;  // ends of the first two groups
  };
  static constexpr float kLikely = 0.5f;

  size_t index_of(ExpertKey key) const { return first_[size_t(key.layer)] + size_t(key.expert); }
  Entry& at(ExpertKey key);
  const Entry& at(ExpertKey key) const { return const_cast<ExpertCache*>(this)->at(key); }
  uint32_t slot_pages(LayerId layer) const;
  std::span<std::byte> bytes_of(LayerId layer, Extent extent) const;
  void pin(StepId step, ExpertKey key, Entry& entry);
  void touch(const Request& request, Entry& entry);
  void judge_reserved(const Request& request);
  void forget_likely(LayerId layer);
  void unpin(ExpertKey key);
  void grant_locked(const Request& request, std::vector<ExpertId>& deferred, std::vector<Grant>& granted);
  size_t victim_limit(const Request& request, const Ranking& ranking) const;
  void rank(LayerId current, Ranking& ranking);
  bool make_room(uint32_t pages, Ranking& ranking, size_t limit, bool no_gap = false);
  Grant place(ExpertKey key, bool transient);
  void evict(ExpertKey key);
  void free_slot(ExpertKey key, Entry& entry);
  void poison(Extent extent);
  void unpoison(Extent extent);
  void changed();

  CacheGeometry geometry_;
  ExpertCacheOptions options_;
  AccessCounts counts_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::span<std::byte> memory_;

  mutable std::mutex mutex_;
  std::condition_variable change_;
  uint64_t changes_ = 0;
  PagePool pool_;
  bool from_top_ = false;
  std::vector<size_t> first_;    // by layer: index of its expert 0
  std::vector<uint32_t> sizes_;  // of slots, in pages, distinct
  std::vector<Entry> entries_;
  std::vector<std::atomic<int32_t>> table_;
  std::map<StepId, std::vector<ExpertKey>> steps_;  // open ones and their pins
  StepId next_step_ = 1;
  uint64_t events_ = 0;
  uint64_t transient_pages_ = 0;
  std::vector<ExpertKey> reserved_, likely_;  // entries with those flags
  std::vector<ExpertKey> ranked_;             // scratch
  CacheStats stats_;
};

}  // namespace ef
