#include "expertflow/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {

namespace {
// cgroup v2 cpu.max ("quota period" or "max period"), then v1's pair of files; 0 when there is no limit.
double cgroup_cpu_quota() {
  std::string quota;
  double period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period && quota != "max" && period > 0)
    return std::stod(quota) / period;
  double q = 0;
  std::ifstream v1q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1p("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1q >> q && v1p >> period && q > 0 && period > 0) return q / period;
  return 0;
}
}  // namespace

int available_processors() {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
  if (double quota = cgroup_cpu_quota(); quota > 0) n = std::min(n, std::max(1, int(std::lround(quota))));
  return std::max(1, n);
}

ThreadPool::ThreadPool(int threads) : size_(threads > 0 ? threads : available_processors()) {
  try {
    for (int i = 1; i < size_; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    stop();
    fail<ConfigError>("threads: {} were asked for, the system gave {}: {}", size_, started + 1, error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(1, grain);
  if (size_ == 1 || n <= grain) {
    for (int64_t i = 0; i < n; i += grain) body(i, std::min(n, i + grain), 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    n_ = n, grain_ = grain, next_ = 0, busy_ = size_, error_ = nullptr;
    ++epoch_;
  }
  wake_.notify_all();
  run_ranges(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::run_ranges(int worker) {
  for (;;) {
    int64_t begin, end;
    {
      std::lock_guard lock(mutex_);
      if (next_ >= n_ || error_) break;
      begin = next_;
      end = next_ = std::min(n_, begin + grain_);
    }
    try {
      (*body_)(begin, end, worker);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  std::lock_guard lock(mutex_);
  if (--busy_ == 0) done_.notify_all();
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || epoch_ != seen; });
      if (stop_) return;
      seen = epoch_;
    }
    run_ranges(worker);
  }
}

}  // namespace ef
