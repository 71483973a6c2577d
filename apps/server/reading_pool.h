// A few threads that read long requests (JSON, chat template, tokens), so that those which serve connections stay free.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "expertflow/base/stop_check.h"

namespace ef::server {

class ReadingPool {
 public:
  using Work = std::function<void(const StopCheck&)>;
  struct Job;
  using Handle = std::shared_ptr<Job>;

  ReadingPool(int threads, int most_waiting);
  ~ReadingPool();
  ReadingPool(const ReadingPool&) = delete;
  ReadingPool& operator=(const ReadingPool&) = delete;

  /// work is called once, on one of the threads, and must not throw. BusyError where too many wait, or after
  /// stop_all().
  Handle submit(Work work);
  /// Nobody waits for it any more: its check throws, or it is never called.
  void cancel(const Handle& job);
  /// The checks of all jobs throw from now on; those that wait are still called, so that they can say so.
  void stop_all();
  /// stop_all(), and waits for the threads. The destructor does the same.
  void stop();

  struct Counts {
    int threads = 0, running = 0, waiting = 0;
  };
  Counts counts() const;

  /// Called in every check of every job: tests meet there. Set before the first job.
  std::function<void()> on_check;

 private:
  void work();

  const int most_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Handle> waiting_;
  std::vector<Handle> running_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ef::server
