#include "expertflow/cache/expert_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "expertflow/base/errors.h"

#if defined(__SANITIZE_ADDRESS__)
#define EF_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EF_ASAN 1
#endif
#endif
#ifdef EF_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace ef {

uint64_t CacheGeometry::footprint(LayerId layer) const {
  const uint64_t bytes = layers[size_t(layer)].slot_bytes;
  return bytes + (page_bytes - bytes % page_bytes) % page_bytes;
}

uint64_t CacheGeometry::largest_footprint() const {
  uint64_t largest = 0;
  for (size_t i = 0; i < layers.size(); ++i) largest = std::max(largest, footprint(LayerId(i)));
  return largest;
}

uint64_t CacheGeometry::total_footprint() const {
  uint64_t total = 0;
  for (size_t i = 0; i < layers.size(); ++i) total += footprint(LayerId(i)) * uint64_t(layers[i].experts);
  return total;
}

uint64_t CacheGeometry::pool_bytes(uint64_t budget) const {
  return std::min(budget - budget % page_bytes, total_footprint());
}

double CacheStats::hit_rate() const {
  const uint64_t all = hits + late_hits + misses;
  return all == 0 ? 0. : double(hits) / double(all);
}

namespace {

uint32_t checked_pages(const CacheGeometry& geometry, uint64_t bytes) {
  EF_DCHECK(geometry.page_bytes >= 64 && (geometry.page_bytes & (geometry.page_bytes - 1)) == 0);
  EF_CHECK(
      bytes >= geometry.largest_footprint(), ConfigError,
      "expert cache: {} bytes are too few: the largest expert takes {} bytes ({} experts take {})", bytes,
      geometry.largest_footprint(),
      [&] {
        uint64_t n = 0;
        for (const auto& layer : geometry.layers) n += uint64_t(layer.experts);
        return n;
      }(),
      geometry.total_footprint());
  const uint64_t pages = bytes / geometry.page_bytes;
  EF_CHECK(pages <= uint64_t(std::numeric_limits<int32_t>::max()), ConfigError,
           "expert cache: {} bytes are {} pages of {} bytes; allowed are {}", bytes, pages, geometry.page_bytes,
           std::numeric_limits<int32_t>::max());
  return uint32_t(pages);
}

std::vector<int> experts_of(const CacheGeometry& geometry) {
  std::vector<int> experts;
  for (const auto& layer : geometry.layers) experts.push_back(layer.experts);
  return experts;
}

}  // namespace

ExpertCache::ExpertCache(CacheGeometry geometry, std::unique_ptr<EvictionPolicy> policy, std::span<std::byte> memory,
                         ExpertCacheOptions options)
    : geometry_(std::move(geometry)),
      options_(options),
      counts_(experts_of(geometry_)),
      policy_(std::move(policy)),
      memory_(memory),
      pool_(checked_pages(geometry_, memory.size())) {
  size_t count = 0;
  for (const auto& layer : geometry_.layers) {
    first_.push_back(count);
    count += size_t(layer.experts);
    if (layer.experts > 0) sizes_.push_back(slot_pages(LayerId(first_.size() - 1)));
  }
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  entries_.resize(count);
  table_ = std::vector<std::atomic<int32_t>>(count);
  for (auto& page : table_) page.store(-1, std::memory_order_relaxed);
  stats_.layers.resize(geometry_.layers.size());
  policy_->use_counts(counts_);
  poison({0, pool_.pages()});
}

ExpertCache::~ExpertCache() { unpoison({0, pool_.pages()}); }

ExpertCache::Entry& ExpertCache::at(ExpertKey key) {
  EF_DCHECK(key.layer >= 0 && size_t(key.layer) < geometry_.layers.size());
  EF_DCHECK(key.expert >= 0 && key.expert < geometry_.layers[size_t(key.layer)].experts);
  return entries_[index_of(key)];
}

uint32_t ExpertCache::slot_pages(LayerId layer) const {
  return uint32_t(geometry_.footprint(layer) / geometry_.page_bytes);
}

std::span<std::byte> ExpertCache::bytes_of(LayerId layer, Extent extent) const {
  return memory_.subspan(size_t(extent.first) * geometry_.page_bytes, geometry_.layers[size_t(layer)].slot_bytes);
}

StepId ExpertCache::begin_step() {
  const std::lock_guard lock(mutex_);
  steps_[next_step_];
  return next_step_++;
}

void ExpertCache::end_step(StepId step) {
  const std::lock_guard lock(mutex_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) return;
  for (const ExpertKey key : it->second) unpin(key);
  steps_.erase(it);
  changed();
}

void ExpertCache::pin(StepId step, ExpertKey key, Entry& entry) {
  const auto it = steps_.find(step);
  EF_DCHECK(it != steps_.end());
  it->second.push_back(key);
  stats_.pinned += ++entry.pins == 1;
}

void ExpertCache::unpin(ExpertKey key) {
  Entry& entry = at(key);
  EF_DCHECK(entry.pins > 0);
  stats_.pinned -= --entry.pins == 0;
}

void ExpertCache::release(StepId step, ExpertKey key) {
  const std::lock_guard lock(mutex_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) return;
  const auto place = std::find(it->second.rbegin(), it->second.rend(), key);
  if (place == it->second.rend()) return;
  it->second.erase(std::next(place).base());
  unpin(key);
  const Entry& entry = at(key);
  if (entry.eager && entry.transient && entry.pins == 0 && entry.state == ExpertState::kResident) {
    ++stats_.eager_evictions;
    evict(key);
  }
  changed();
}

void ExpertCache::touch(const Request& request, Entry& entry) {
  entry.touched_step = request.step;
  entry.touched_event = events_;
  entry.unused = false;
  if (!request.transient && entry.transient) {
    entry.transient = false;
    transient_pages_ -= entry.extent.pages;
  }
}

void ExpertCache::open(const Request& request, std::vector<Grant>& granted, std::vector<ExpertId>& deferred) {
  const std::lock_guard lock(mutex_);
  ++events_;
  const AccessEvent event{request.step, request.layer, request.experts, request.tokens, request.rows};
  counts_.add(event);
  policy_->on_access(event);
  LayerCacheStats& layer = stats_.layers[size_t(request.layer)];
  granted.clear();
  deferred.clear();
  judge_reserved(request);
  forget_likely(request.layer);
  // Residents are pinned before anything is placed, so that no miss of this event takes the slot of one of its hits.
  for (const ExpertId expert : request.experts) {
    const ExpertKey key{request.layer, expert};
    Entry& entry = at(key);
    if (entry.state == ExpertState::kAbsent) {
      ++stats_.misses;
      ++layer.misses;
      deferred.push_back(expert);
      continue;
    }
    if (entry.state == ExpertState::kResident) {
      ++stats_.hits;
      ++layer.hits;
      if (entry.unused) stats_.reserved_ready_bytes += geometry_.layers[size_t(request.layer)].slot_bytes;
    } else {
      ++stats_.late_hits;
      ++layer.late_hits;
    }
    pin(request.step, key, entry);
    touch(request, entry);
    granted.push_back({expert, bytes_of(key.layer, entry.extent), entry.state, false});
  }
  grant_locked(request, deferred, granted);
  stats_.deferred += deferred.size();
}

// What was brought for this layer ahead of time and is not wanted goes before anything else.
void ExpertCache::judge_reserved(const Request& request) {
  std::erase_if(reserved_, [&](ExpertKey key) {
    if (key.layer != request.layer) return false;
    Entry& entry = at(key);
    entry.reserved = false;
    if (std::find(request.experts.begin(), request.experts.end(), key.expert) != request.experts.end()) {
      ++stats_.reserved_used;
      stats_.reserved_late += entry.state == ExpertState::kInFlight;
      return true;
    }
    ++stats_.reserved_wasted;
    entry.touched_step = 0;
    if (!entry.transient) transient_pages_ += entry.extent.pages;
    entry.transient = true;
    return true;
  });
}

std::optional<ExpertCache::Grant> ExpertCache::preload(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  if (at(key).state != ExpertState::kAbsent || pool_.largest_free() < slot_pages(key.layer)) return std::nullopt;
  return place(key, false);
}

void ExpertCache::predict(std::span<const std::pair<ExpertKey, float>> likely) {
  const std::lock_guard lock(mutex_);
  policy_->on_prediction(likely);
  LayerId told = -1;  // layers come one after the other: each is looked for once
  for (const auto& [key, probability] : likely)
    if (key.layer != told) forget_likely(told = key.layer);
  for (const auto& [key, probability] : likely) {
    Entry& entry = at(key);
    if (probability < kLikely || entry.likely) continue;
    entry.likely = true;
    likely_.push_back(key);
  }
}

void ExpertCache::forget_likely(LayerId layer) {
  std::erase_if(likely_, [&](ExpertKey key) {
    if (key.layer == layer) at(key).likely = false;
    return key.layer == layer;
  });
}

void ExpertCache::note_scores(LayerId layer, std::span<const std::pair<ExpertId, float>> probable) {
  const std::lock_guard lock(mutex_);
  policy_->on_scores(layer, probable);
}

uint64_t ExpertCache::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const ExpertKey key : reserved_) bytes += geometry_.footprint(key.layer);
  return bytes;
}

void ExpertCache::grant(const Request& request, std::vector<ExpertId>& deferred, std::vector<Grant>& granted) {
  const std::lock_guard lock(mutex_);
  granted.clear();
  grant_locked(request, deferred, granted);
}

void ExpertCache::grant_locked(const Request& request, std::vector<ExpertId>& deferred, std::vector<Grant>& granted) {
  Ranking ranking;
  std::vector<ExpertId> left;
  bool full = false;  // slots of a layer are equal: where one does not fit, none does
  for (const ExpertId expert : deferred) {
    const ExpertKey key{request.layer, expert};
    Entry& entry = at(key);
    if (entry.state == ExpertState::kAbsent) {
      const uint32_t pages = slot_pages(key.layer);
      if (!full && !fits_free(pool_, pages, sizes_)) {
        if (!ranking.valid) rank(request.layer, ranking);
        full = !make_room(pages, ranking, victim_limit(request, ranking));
      }
      if (full) {
        left.push_back(expert);
        continue;
      }
      granted.push_back(place(key, request.transient));
      entry.eager = request.transient && request.eager;
    } else {  // somebody else's copy brought it meanwhile
      granted.push_back({expert, bytes_of(key.layer, entry.extent), entry.state, false});
    }
    pin(request.step, key, entry);
    touch(request, entry);
  }
  deferred = std::move(left);
}

// How many of the ranked victims a request may take.
size_t ExpertCache::victim_limit(const Request& request, const Ranking& ranking) const {
  if (!request.transient) return ranking.ordered.size();
  const double share = options_.transient_share * double(pool_.pages());
  const bool may_grow = double(transient_pages_ + slot_pages(request.layer)) <= share;
  // Whoever holds nothing must be served, whatever the share.
  const bool starving = steps_.at(request.step).empty();
  return may_grow || starving ? ranking.ordered.size() : ranking.transient;
}

void ExpertCache::rank(LayerId current, Ranking& ranking) {
  policy_->rank_victims(current, ranked_);
  using Late = std::pair<uint64_t, Victim>;  // event that asked for it last
  std::vector<Late> transient, open;
  std::vector<Victim> plain, likely;
  plain.reserve(ranked_.size());
  for (const ExpertKey key : ranked_) {
    const Entry& entry = at(key);
    if (entry.state != ExpertState::kResident || entry.pins > 0) continue;
    if (entry.likely && (entry.transient || steps_.count(entry.touched_step) == 0)) {
      likely.push_back({key, entry.extent});
    } else if (entry.transient) {
      transient.push_back({entry.touched_event, {key, entry.extent}});
    } else if (steps_.count(entry.touched_step) > 0) {
      open.push_back({entry.touched_event, {key, entry.extent}});
    } else {
      plain.push_back({key, entry.extent});
    }
  }
  // What one pass used comes around again in the same order: the latest is needed last.
  const auto latest_first = [](const Late& a, const Late& b) { return a.first > b.first; };
  std::stable_sort(transient.begin(), transient.end(), latest_first);
  std::stable_sort(open.begin(), open.end(), latest_first);
  ranking.ordered.reserve(ranked_.size());
  for (const Late& late : transient) ranking.ordered.push_back(late.second);
  ranking.transient = ranking.ordered.size();
  ranking.ordered.insert(ranking.ordered.end(), plain.begin(), plain.end());
  ranking.plain = ranking.ordered.size();
  ranking.ordered.insert(ranking.ordered.end(), likely.begin(), likely.end());
  for (const Late& late : open) ranking.ordered.push_back(late.second);
  ranking.valid = true;
}

bool ExpertCache::make_room(uint32_t pages, Ranking& ranking, size_t limit, bool no_gap) {
  const auto chosen = choose_victims(pool_, ranking.ordered, limit, pages, sizes_, no_gap);
  if (!chosen) return false;
  for (const size_t i : *chosen) {
    ranking.ordered[i].gone = true;
    evict(ranking.ordered[i].key);
  }
  return true;
}

ExpertCache::Grant ExpertCache::place(ExpertKey key, bool transient) {
  Entry& entry = at(key);
  entry.extent = *pool_.allocate(slot_pages(key.layer), from_top_);
  entry.state = ExpertState::kInFlight;
  entry.transient = transient;
  entry.eager = false;
  entry.error = nullptr;
  if (transient) transient_pages_ += entry.extent.pages;
  ++stats_.in_flight;
  stats_.bytes_in_flight += uint64_t(entry.extent.pages) * geometry_.page_bytes;
  // Told when the slot is taken, not when the copy lands: the policy's view does not depend on the disk's mood.
  policy_->on_insert(key);
  unpoison(entry.extent);
  return {key.expert, bytes_of(key.layer, entry.extent), entry.state, true};
}

std::optional<ExpertCache::Grant> ExpertCache::reserve(ExpertKey key, LayerId current) {
  const std::lock_guard lock(mutex_);
  Entry& entry = at(key);
  if (entry.state != ExpertState::kAbsent) return std::nullopt;
  const uint32_t pages = slot_pages(key.layer);
  if (!fits_free(pool_, pages, sizes_)) {
    Ranking ranking;
    rank(current, ranking);
    // What nobody waits for yet is not worth a gap that stays.
    if (!make_room(pages, ranking, ranking.plain, true)) return std::nullopt;
  }
  const Grant granted = place(key, false);
  // Promised to the newest open step: it goes last until that step has ended.
  if (!steps_.empty()) entry.touched_step = steps_.rbegin()->first;
  entry.touched_event = events_;
  entry.reserved = entry.unused = true;
  reserved_.push_back(key);
  ++stats_.reserved;
  return granted;
}

void ExpertCache::complete(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  Entry& entry = at(key);
  EF_DCHECK(entry.state == ExpertState::kInFlight);
  entry.state = ExpertState::kResident;
  const uint64_t slot_bytes = geometry_.layers[size_t(key.layer)].slot_bytes;
  --stats_.in_flight;
  stats_.bytes_in_flight -= uint64_t(entry.extent.pages) * geometry_.page_bytes;
  ++stats_.residents;
  ++stats_.fills;
  stats_.bytes_filled += slot_bytes;
  stats_.layers[size_t(key.layer)].bytes_filled += slot_bytes;
  table_[index_of(key)].store(int32_t(entry.extent.first), std::memory_order_release);
  changed();
}

void ExpertCache::fail(ExpertKey key, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  Entry& entry = at(key);
  EF_DCHECK(entry.state == ExpertState::kInFlight);
  --stats_.in_flight;
  stats_.bytes_in_flight -= uint64_t(entry.extent.pages) * geometry_.page_bytes;
  ++(error ? stats_.failed_fills : stats_.cancelled_fills);
  free_slot(key, entry);
  entry.error = std::move(error);
  changed();
}

void ExpertCache::evict(ExpertKey key) {
  Entry& entry = at(key);
  EF_DCHECK(entry.state == ExpertState::kResident && entry.pins == 0);
  table_[index_of(key)].store(-1, std::memory_order_release);
  --stats_.residents;
  ++stats_.evictions;
  if (entry.unused) {
    ++stats_.reserved_evicted;
    stats_.reserved_evicted_bytes += geometry_.layers[size_t(key.layer)].slot_bytes;
  }
  ++stats_.layers[size_t(key.layer)].evictions;
  free_slot(key, entry);
}

void ExpertCache::free_slot(ExpertKey key, Entry& entry) {
  policy_->on_evict(key);
  if (entry.transient) transient_pages_ -= entry.extent.pages;
  entry.transient = false;
  if (entry.reserved) std::erase(reserved_, key);
  entry.reserved = entry.unused = false;
  entry.state = ExpertState::kAbsent;
  poison(entry.extent);
  pool_.release(entry.extent);
  entry.extent = {};
}

void ExpertCache::evict_all() {
  const std::lock_guard lock(mutex_);
  for (size_t layer = 0; layer < geometry_.layers.size(); ++layer) {
    for (ExpertId expert = 0; expert < geometry_.layers[layer].experts; ++expert) {
      const ExpertKey key{LayerId(layer), expert};
      const Entry& entry = at(key);
      if (entry.state == ExpertState::kResident && entry.pins == 0) evict(key);
    }
  }
  from_top_ = !from_top_;
  changed();
}

void ExpertCache::trim(uint64_t bytes, LayerId current) {
  const std::lock_guard lock(mutex_);
  const auto fits = [&] { return uint64_t(pool_.pages() - pool_.free_pages()) * geometry_.page_bytes <= bytes; };
  if (fits()) return;
  policy_->rank_victims(current, ranked_);
  for (const ExpertKey key : ranked_) {
    if (fits()) break;
    const Entry& entry = at(key);
    if (entry.state == ExpertState::kResident && entry.pins == 0) evict(key);
  }
  changed();
}

void ExpertCache::wait_any(std::span<const ExpertKey> keys) {
  if (keys.empty()) return;
  std::unique_lock lock(mutex_);
  change_.wait(lock, [&] {
    return std::any_of(keys.begin(), keys.end(),
                       [&](ExpertKey key) { return at(key).state != ExpertState::kInFlight; });
  });
}

uint64_t ExpertCache::wait_change(uint64_t seen) {
  std::unique_lock lock(mutex_);
  change_.wait(lock, [&] { return changes_ != seen; });
  return changes_;
}

uint64_t ExpertCache::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

void ExpertCache::changed() {
  ++changes_;
  change_.notify_all();
}

ExpertCache::Look ExpertCache::look(ExpertKey key) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = at(key);
  Look out{entry.state, {}, entry.error};
  if (entry.state == ExpertState::kResident) out.slot = bytes_of(key.layer, entry.extent);
  return out;
}

PolicyCounters ExpertCache::policy_counters() const {
  const std::lock_guard lock(mutex_);
  return policy_->counters();
}

CacheStats ExpertCache::stats() const {
  const std::lock_guard lock(mutex_);
  CacheStats out = stats_;
  out.pool_bytes = pool_bytes();
  out.bytes_in_use = uint64_t(pool_.pages() - pool_.free_pages()) * geometry_.page_bytes;
  out.largest_free_bytes = uint64_t(pool_.largest_free()) * geometry_.page_bytes;
  return out;
}

// In debug builds a free slot is made of NaNs in every format (0xff: F32, F16, BF16, FP8, E8M0, block scales), so that
// a read of one shows at once; under the address sanitizer it is an error itself.
void ExpertCache::poison([[maybe_unused]] Extent extent) {
#if defined(EF_DEBUG) || defined(EF_ASAN)
  if (!options_.host_memory) return;
  [[maybe_unused]] const auto bytes =
      memory_.subspan(size_t(extent.first) * geometry_.page_bytes, size_t(extent.pages) * geometry_.page_bytes);
#ifdef EF_DEBUG
  std::memset(bytes.data(), 0xff, bytes.size());
#endif
#ifdef EF_ASAN
  __asan_poison_memory_region(bytes.data(), bytes.size());
#endif
#endif
}

void ExpertCache::unpoison([[maybe_unused]] Extent extent) {
#ifdef EF_ASAN
  if (!options_.host_memory) return;
  __asan_unpoison_memory_region(memory_.data() + size_t(extent.first) * geometry_.page_bytes,
                                size_t(extent.pages) * geometry_.page_bytes);
#endif
}

}  // namespace ef
