#include "expertflow/transfer/copy_pipeline.h"

#include <algorithm>
#include <system_error>

#include "expertflow/base/errors.h"

namespace ef {

CopyPipeline::CopyPipeline(ExpertReader& reader, ExpertCache& cache, const Clock& clock, CopyPipelineOptions options)
    : reader_(reader), cache_(cache), clock_(clock), options_(std::move(options)) {
  EF_CHECK(options_.workers >= 1, ConfigError, "copy pipeline: expected at least 1 reader, found {}", options_.workers);
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
  for (std::thread& thread : threads_) thread.join();
}

void CopyPipeline::submit(std::span<const Copy> copies, CopyPriority priority) {
  if (copies.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    auto& queue = priority == CopyPriority::kDemand ? demand_ : prefetch_;
    queue.insert(queue.end(), copies.begin(), copies.end());
  }
  wake_.notify_all();
}

void CopyPipeline::promote(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(prefetch_.begin(), prefetch_.end(), [&](const Copy& job) { return job.key == key; });
  if (it == prefetch_.end()) return;
  demand_.push_back(*it);
  prefetch_.erase(it);
  wake_.notify_one();
}

size_t CopyPipeline::cancel_prefetches(const std::function<bool(ExpertKey)>& which) {
  std::deque<Copy> taken, kept;
  {
    const std::lock_guard lock(mutex_);
    for (const Copy& job : prefetch_) (!which || which(job.key) ? taken : kept).push_back(job);
    prefetch_ = std::move(kept);
    stats_.cancelled += taken.size();
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
  out.busy_seconds = bandwidth_.busy_seconds(clock_.now());
  out.bytes_per_second = bandwidth_.bytes_per_second();
  return out;
}

bool CopyPipeline::may_prefetch() const {
  return !prefetch_.empty() && active_prefetches_ < std::max<uint64_t>(1, uint64_t(options_.workers) / 2);
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
    active_prefetches_ += ahead;
    lock.unlock();
    copy(job, lane);
    lock.lock();
    --active_;
    active_prefetches_ -= ahead;
    if (active_ == 0 && demand_.empty() && prefetch_.empty()) idle_.notify_all();
  }
}

void CopyPipeline::copy(const Copy& job, int lane) {
  at("start", job.key);
  {
    const std::lock_guard lock(mutex_);
    bandwidth_.begin(clock_.now());
  }
  std::exception_ptr error;
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
    } catch (const DeviceError&) {
      error = std::current_exception();
    } catch (...) {  // bad content stays bad; whatever it was, it must reach the waiting step and not end this thread
      error = std::current_exception();
      break;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    bandwidth_.end(clock_.now(), bytes);
    stats_.bytes_read += bytes;
    stats_.retries += retries;
    ++(error ? stats_.failed : stats_.copies);
  }
  if (error) {
    cache_.fail(job.key, error);
    at("fail", job.key);
  } else {
    at("filled", job.key);
    cache_.complete(job.key);
    at("complete", job.key);
  }
}

}  // namespace ef
