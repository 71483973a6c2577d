#include "expertflow/cache/clairvoyant.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <unordered_map>

namespace ef {

namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

struct Access {
  ExpertKey key;
  size_t next = kNever;  // place of the next access to the same expert
  bool last = false;     // of its event
};

std::vector<Access> accesses_of(std::span<const LayerEvent> events) {
  std::vector<Access> accesses;
  for (const LayerEvent& event : events) {
    for (const ExpertId expert : event.experts) accesses.push_back({{event.layer, expert}, kNever, false});
    if (!event.experts.empty()) accesses.back().last = true;
  }
  std::unordered_map<ExpertKey, size_t> later;
  for (size_t i = accesses.size(); i-- > 0;) {
    const auto [it, first] = later.try_emplace(accesses[i].key, i);
    if (!first) accesses[i].next = it->second, it->second = i;
  }
  return accesses;
}

// Bytes kept of each expert, by next use.
class Kept {
 public:
  explicit Kept(uint64_t capacity) : capacity_(capacity) {}

  // Takes an expert out: the bytes that were kept.
  uint64_t take(ExpertKey key) {
    const auto it = bytes_.find(key);
    if (it == bytes_.end()) return 0;
    const Entry entry = it->second;
    bytes_.erase(it);
    order_.erase({entry.next, key});
    total_ -= entry.bytes;
    return entry.bytes;
  }
  void put(ExpertKey key, size_t next, uint64_t bytes) {
    if (next == kNever) return;
    bytes_[key] = {bytes, next};
    order_.insert({next, key});
    total_ += bytes;
    while (total_ > capacity_) shrink_last();
  }

 private:
  struct Entry {
    uint64_t bytes;
    size_t next;
  };
  void shrink_last() {
    const auto last = std::prev(order_.end());
    Entry& entry = bytes_.at(last->second);
    const uint64_t gone = std::min(entry.bytes, total_ - capacity_);
    total_ -= gone;
    if (gone < entry.bytes) {
      entry.bytes -= gone;
      return;
    }
    bytes_.erase(last->second);
    order_.erase(last);
  }

  uint64_t capacity_, total_ = 0;
  std::unordered_map<ExpertKey, Entry> bytes_;
  std::set<std::pair<size_t, ExpertKey>> order_;
};

}  // namespace

ClairvoyantResult clairvoyant_misses(const CacheGeometry& geometry, std::span<const LayerEvent> events,
                                     uint64_t capacity_bytes, bool warm) {
  const auto size = [&](ExpertKey key) { return geometry.layers[size_t(key.layer)].slot_bytes; };
  const std::vector<Access> accesses = accesses_of(events);
  Kept kept(capacity_bytes);
  if (warm) {
    std::unordered_map<ExpertKey, size_t> first;
    for (size_t i = 0; i < accesses.size(); ++i) first.try_emplace(accesses[i].key, i);
    for (const auto& [key, at] : first) kept.put(key, at, size(key));
  }
  ClairvoyantResult result;
  // An event is one: what it asks for may be used in the order that serves best, so all of it competes for what is
  // kept.
  for (size_t i = 0, first = 0; i < accesses.size(); ++i) {
    const uint64_t bytes = size(accesses[i].key);
    ++result.accesses;
    result.bytes_accessed += bytes;
    result.bytes_missed += bytes - kept.take(accesses[i].key);
    if (!accesses[i].last) continue;
    for (; first <= i; ++first) kept.put(accesses[first].key, accesses[first].next, size(accesses[first].key));
  }
  return result;
}

}  // namespace ef
