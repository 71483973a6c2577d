#include "expertflow/transfer/copy_pipeline.h"

#include <algorithm>
#include <system_error>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

struct CopyCancelled {};  // out of a fill

}  // namespace

CopyPipeline::CopyPipeline(ExpertReader& reader, ExpertCache& cache, const Clock& clock, CopyPipelineOptions options)
    : reader_(reader), cache_(cache), clock_(clock), options_(std::move(options)) {
  EF_CHECK(options_.workers >= 1, ConfigError, "copy pipeline: expected at least 1 reader, found {}", options_.workers);
  lanes_.resize(size_t(options_.workers));
  reader_.set_checkpoint([this](int lane, uint64_t done) { return checkpoint(lane, done); });
  try {
    for (int i = 0; i < options_.workers; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    stop();
    fail<ConfigError>("copy pipeline: {} readers were asked for, the system gave {} threads: {}", options_.workers,
                      started, error.what());
  }
}

CopyPipeline::~CopyPipeline() { stop(); }

void CopyPipeline::stop() {
  std::deque<Copy> left;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    left = std::move(demand_);
    left.insert(left.end(), prefetch_.begin(), prefetch_.end());
    demand_.clear();
    prefetch_.clear();
  }
  for (const Copy& job : left) cache_.fail(job.key, nullptr);
  wake_.notify_all();
  resume_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyPipeline::submit(std::span<const Copy> copies, CopyPriority priority) {
  if (copies.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (priority == CopyPriority::kDemand)
      demand_.insert(demand_.end(), copies.begin(), copies.end());
    else
      for (const Copy& copy : copies) queue_prefetch(copy);
    note_demand();
  }
  wake_.notify_all();
}

// The nearest layer first, whenever it was thought of: layers' turns come in their order.
void CopyPipeline::queue_prefetch(const Copy& copy) {
  const auto behind = [](LayerId layer, const Copy& other) { return layer < other.key.layer; };
  prefetch_.insert(std::upper_bound(prefetch_.begin(), prefetch_.end(), copy.key.layer, behind), copy);
}

// Short enough for a demand not to wait long, long enough for the reader.
uint64_t CopyPipeline::part() const {
  constexpr double kPauseSeconds = 200e-6;
  constexpr uint64_t kLeast = 256 << 10;
  const auto bytes = uint64_t(bandwidth_.bytes_per_second() * kPauseSeconds);
  return std::min(options_.prefetch_part, std::max(bytes, kLeast));
}

// Whether there is demand may have changed: counts its time, and lets prefetches go on.
void CopyPipeline::note_demand() {
  if (demanding() == demand_noted_) return;
  demand_noted_ = !demand_noted_;
  const Duration now = clock_.now();
  if (demand_noted_) {
    demand_since_ = now;
  } else {
    demand_total_ += now - demand_since_;
    resume_.notify_all();
    wake_.notify_all();
  }
}

void CopyPipeline::promote(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    if (!lane.active || lane.key != key) continue;
    lane.cancelled = false;
    if (!lane.ahead) return;
    lane.ahead = false;
    --active_prefetches_;
    ++active_demands_;
    note_demand();
    resume_.notify_all();
    wake_.notify_all();
    return;
  }
  const auto it = std::find_if(prefetch_.begin(), prefetch_.end(), [&](const Copy& job) { return job.key == key; });
  if (it == prefetch_.end()) return;
  demand_.push_back(*it);
  prefetch_.erase(it);
  note_demand();
  wake_.notify_one();
}

double CopyPipeline::progress(ExpertKey key) const {
  const std::lock_guard lock(mutex_);
  for (const Lane& lane : lanes_)
    if (lane.active && lane.key == key)
      return std::min(1., double(lane.done) / double(std::max<uint64_t>(1, reader_.file_bytes(key))));
  return 0;
}

size_t CopyPipeline::cancel_prefetches(const std::function<bool(ExpertKey)>& which) {
  std::deque<Copy> taken, kept;
  {
    const std::lock_guard lock(mutex_);
    for (const Copy& job : prefetch_) (!which || which(job.key) ? taken : kept).push_back(job);
    prefetch_ = std::move(kept);
    stats_.cancelled += taken.size();
    for (Lane& lane : lanes_)
      if (lane.active && lane.ahead && (!which || which(lane.key))) lane.cancelled = true;
    resume_.notify_all();
    if (active_ == 0 && demand_.empty() && prefetch_.empty()) idle_.notify_all();
  }
  for (const Copy& job : taken) cache_.fail(job.key, nullptr);
  return taken.size();
}

void CopyPipeline::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return active_ == 0 && demand_.empty() && prefetch_.empty(); });
}

CopyStats CopyPipeline::stats() const {
  const std::lock_guard lock(mutex_);
  CopyStats out = stats_;
  out.queued = demand_.size() + prefetch_.size();
  out.active = active_;
  for (const Copy& job : prefetch_) out.prefetch_bytes += reader_.file_bytes(job.key);
  for (const Lane& lane : lanes_)
    if (lane.active && lane.ahead) out.prefetch_bytes += reader_.file_bytes(lane.key) - lane.done;
  const Duration now = clock_.now();
  out.busy_seconds = bandwidth_.busy_seconds(now);
  out.demand_busy_seconds = seconds(demand_noted_ ? demand_total_ + (now - demand_since_) : demand_total_);
  out.bytes_per_second = bandwidth_.bytes_per_second();
  return out;
}

// None beside a demand: it would take of the link what somebody waits for.
bool CopyPipeline::may_prefetch() const {
  return !prefetch_.empty() && !demanding() &&
         active_prefetches_ < std::max<uint64_t>(1, uint64_t(options_.workers) / 2);
}

void CopyPipeline::work(int lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !demand_.empty() || may_prefetch(); });
    if (stop_) return;
    const bool ahead = demand_.empty();
    auto& queue = ahead ? prefetch_ : demand_;
    const Copy job = queue.front();
    queue.pop_front();
    ++active_;
    ++(ahead ? active_prefetches_ : active_demands_);
    lanes_[size_t(lane)] = {true, ahead, false, job.key, 0, 0};
    lock.unlock();
    copy(job, lane);
    lock.lock();
    finished(lane);
  }
}

void CopyPipeline::finished(int lane) {
  --active_;
  --(lanes_[size_t(lane)].ahead ? active_prefetches_ : active_demands_);
  lanes_[size_t(lane)] = {};
  note_demand();
  if (active_ == 0 && demand_.empty() && prefetch_.empty()) idle_.notify_all();
}

// A prefetch under way lets demands go first. With one worker there is nobody else to serve them: it goes on.
uint64_t CopyPipeline::checkpoint(int lane_index, uint64_t done) {
  std::unique_lock lock(mutex_);
  Lane& lane = lanes_[size_t(lane_index)];
  lane.done = done;
  const auto ended = [&] { return lane.ahead && (lane.cancelled || stop_); };
  const auto waits = [&] { return lane.ahead && options_.workers > 1 && demanding() && !ended(); };
  if (waits()) {
    ++stats_.pauses;
    bandwidth_.end(clock_.now(), done - lane.told);
    lane.told = done;
    resume_.wait(lock, [&] { return !waits(); });
    bandwidth_.begin(clock_.now());
  }
  if (ended()) throw CopyCancelled();
  return lane.ahead ? part() : UINT64_MAX;
}

void CopyPipeline::copy(const Copy& job, int lane) {
  {
    const std::lock_guard lock(mutex_);
    bandwidth_.begin(clock_.now());
  }
  at("start", job.key);
  std::exception_ptr error;
  bool cancelled = false;
  uint64_t retries = 0, bytes = 0;
  for (int attempt = 0; attempt <= options_.retries; ++attempt) {
    if (attempt > 0) {
      ++retries;
      at("retry", job.key);
    }
    try {
      reader_.fill(job.key, job.slot, lane);
      bytes = reader_.file_bytes(job.key);
      error = nullptr;
      break;
    } catch (const CopyCancelled&) {
      cancelled = true;
      error = nullptr;
      break;
    } catch (const DeviceError&) {
      error = std::current_exception();
    } catch (...) {  // bad content stays bad; whatever it was, it must reach the waiting step and not end this thread
      error = std::current_exception();
      break;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    const Lane& state = lanes_[size_t(lane)];
    const uint64_t came = cancelled ? state.done : bytes;
    bandwidth_.end(clock_.now(), came > state.told ? came - state.told : 0);
    stats_.bytes_read += bytes;
    stats_.retries += retries;
    if (cancelled) stats_.bytes_cancelled += state.done;
    if (state.ahead) stats_.bytes_ahead += bytes;
    ++(cancelled ? stats_.cancelled : error ? stats_.failed : stats_.copies);
  }
  if (cancelled || error) {
    cache_.fail(job.key, error);
    at(cancelled ? "cancel" : "fail", job.key);
  } else {
    at("filled", job.key);
    cache_.complete(job.key);
    at("complete", job.key);
  }
}

}  // namespace ef
