// A fixed set of threads for data-parallel loops. The calling thread takes part, so a pool of one runs inline.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ef {

class ThreadPool {
 public:
  /// threads: total including the caller; 0 means the number of processors this process may use.
  /// ConfigError if the system gives fewer threads.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  /// Splits [0, n) into ranges of `grain` (the last may be shorter) and calls body(begin, end, worker) on the pool.
  /// worker is in [0, size()). Returns when all ranges are done; rethrows the first exception. Results never depend on
  /// which worker took which range as long as body writes only to its own range. Calls must not be nested.
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body);

 private:
  void stop();
  void work(int worker);
  void run_ranges(int worker);

  int size_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int64_t, int)>* body_ = nullptr;
  int64_t n_ = 0, grain_ = 1, next_ = 0;
  int busy_ = 0;
  uint64_t epoch_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

/// Processors this process may run on (affinity and cgroup quota respected), at least 1.
int available_processors();

}  // namespace ef
