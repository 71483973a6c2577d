#include "expertflow/replay/link_model.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"

namespace ef {

Link::Link(const LinkOptions& options) : options_(options) {
  EF_CHECK(options.bytes_per_second > 0 && std::isfinite(options.bytes_per_second), ConfigError,
           "link: expected a bandwidth above 0, found {} bytes per second", options.bytes_per_second);
  EF_CHECK(options.engines >= 1 && options.engines <= 64, ConfigError, "link: expected 1 to 64 copy engines, found {}",
           options.engines);
  EF_CHECK(options.latency >= Duration(0), ConfigError, "link: expected a latency of 0 or more, found {} s",
           seconds(options.latency));
  free_.resize(size_t(options.engines));
}

Duration Link::copy_time(uint64_t bytes) const {
  const double share = options_.bytes_per_second / double(options_.engines);
  return options_.latency + Duration(std::llround(1e9 * double(bytes) / share));
}

void Link::submit(ExpertKey key, uint64_t bytes, bool ahead, Duration now) {
  const Job job{{key, bytes, ahead, !ahead, {}, {}}, now};
  if (!ahead) {
    demand_.push_back(job);
    note_demand(now);
    return;
  }
  const auto later = [](LayerId layer, const Job& other) { return layer < other.copy.key.layer; };
  ahead_.insert(std::upper_bound(ahead_.begin(), ahead_.end(), key.layer, later), job);
}

void Link::note_demand(Duration now) {
  now_ = std::max(now_, now);
  if (demanded_++ == 0) demand_since_ = now_;
}

bool Link::promote(ExpertKey key) {
  const auto it = std::find_if(ahead_.begin(), ahead_.end(), [&](const Job& job) { return job.copy.key == key; });
  if (it == ahead_.end()) return false;
  it->copy.demanded = true;
  demand_.push_back(*it);
  ahead_.erase(it);
  note_demand(now_);
  return true;
}

std::vector<ExpertKey> Link::cancel(const std::function<bool(ExpertKey)>& which) {
  std::vector<ExpertKey> gone;
  std::erase_if(ahead_, [&](const Job& job) {
    if (!which(job.copy.key)) return false;
    gone.push_back(job.copy.key);
    return true;
  });
  return gone;
}

// Hands queued copies to engines as these become free, until `now`.
void Link::begin_until(Duration now) {
  while (!demand_.empty() || !ahead_.empty()) {
    const auto engine = std::min_element(free_.begin(), free_.end());
    // A demand that came later than the engine was free leaves what was queued ahead by then its turn.
    const bool from_demand =
        !demand_.empty() && (ahead_.empty() || demand_.front().queued <= std::max(*engine, ahead_.front().queued));
    auto& queue = from_demand ? demand_ : ahead_;
    const Duration begin = std::max(*engine, queue.front().queued);
    if (begin > now) return;
    Copy copy = queue.front().copy;
    queue.pop_front();
    copy.begin = begin;
    copy.end = begin + copy_time(copy.bytes);
    *engine = copy.end;
    busy_ += copy.end - std::clamp(busy_until_, copy.begin, copy.end);
    busy_until_ = std::max(busy_until_, copy.end);
    active_.push_back(copy);
  }
}

std::vector<Link::Copy> Link::arrived(Duration now) {
  begin_until(now);
  std::vector<Copy> out;
  std::erase_if(active_, [&](const Copy& copy) {
    if (copy.end > now) return false;
    out.push_back(copy);
    return true;
  });
  std::stable_sort(out.begin(), out.end(), [](const Copy& a, const Copy& b) { return a.end < b.end; });
  for (const Copy& copy : out)
    if (copy.demanded && --demanded_ == 0) demand_busy_ += std::max(Duration(0), copy.end - demand_since_);
  now_ = std::max(now_, now);
  return out;
}

std::optional<Duration> Link::next_arrival() {
  std::optional<Duration> next;
  for (const Copy& copy : active_) next = std::min(next.value_or(copy.end), copy.end);
  if (next || (demand_.empty() && ahead_.empty())) return next;
  // Nothing is under way: the first of the queue begins as soon as it may.
  Duration first = Duration::max();
  for (const auto* queue : {&demand_, &ahead_})
    if (!queue->empty()) first = std::min(first, queue->front().queued);
  begin_until(std::max(first, *std::min_element(free_.begin(), free_.end())));
  return next_arrival();
}

double Link::demand_busy_seconds() const {
  return seconds(demanded_ > 0 ? demand_busy_ + (now_ - demand_since_) : demand_busy_);
}

double Link::ahead_seconds() const { return double(ahead_bytes()) / options_.bytes_per_second; }

uint64_t Link::ahead_bytes() const {
  uint64_t bytes = 0;
  for (const Job& job : ahead_) bytes += job.copy.bytes;
  for (const Copy& copy : active_) bytes += copy.ahead ? copy.bytes : 0;
  return bytes;
}

double Link::busy_seconds(Duration now) const { return seconds(busy_ - std::max(Duration(0), busy_until_ - now)); }

}  // namespace ef
