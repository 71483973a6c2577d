// A fixed set of threads for data-parallel loops. The calling thread takes part, so a pool of one runs inline.
// A thread that finds nothing to do looks again for some tens of microseconds, so that loops which follow one another
// need no wake-up, and then sleeps.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace ef {

class ThreadPool {
 public:
  /// threads: total including the caller; 0 means default_threads(). processors: where the pool's own threads are bound
  /// to, thread i to processors[i] (the caller, thread 0, is left where it is); empty: nowhere.
  /// ConfigError if the system gives fewer threads, or a processor that this process may not use.
  explicit ThreadPool(int threads = 0, std::span<const int> processors = {});
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
  // The loop that is open. Written while no thread takes part.
  const std::function<void(int64_t, int64_t, int)>* body_ = nullptr;
  int64_t n_ = 0, grain_ = 1;
  std::atomic<int64_t> next_{0};
  // Upper 16 bits: number of the loop. kOpen: threads may join. Below: how many did.
  std::atomic<uint32_t> state_{0};
  std::atomic<uint32_t> left_{0};  ///< joined threads that are done
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace ef
