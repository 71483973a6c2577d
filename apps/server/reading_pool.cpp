#include "apps/server/reading_pool.h"

#include <algorithm>

#include "expertflow/engine/engine_loop.h"

namespace ef::server {

struct ReadingPool::Job {
  Work work;
  std::stop_source stop;
};

ReadingPool::ReadingPool(int threads, int most_waiting) : most_waiting_(most_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

ReadingPool::~ReadingPool() { stop(); }

ReadingPool::Handle ReadingPool::submit(Work work) {
  auto job = std::make_shared<Job>(Job{std::move(work), {}});
  {
    const std::lock_guard lock(mutex_);
    EF_CHECK(!stopped_, BusyError, "the server is shutting down");
    // What a free thread is about to take does not wait.
    const size_t room = size_t(most_waiting_) + threads_.size() - running_.size();
    EF_CHECK(waiting_.size() < room, BusyError,
             "the queue is full: {} long requests are being read or wait for it; try again later",
             waiting_.size() + running_.size());
    waiting_.push_back(job);
  }
  wake_.notify_one();
  return job;
}

void ReadingPool::cancel(const Handle& job) {
  job->stop.request_stop();
  Work dropped;  // with all that it holds, outside of the lock
  const std::lock_guard lock(mutex_);
  if (std::erase(waiting_, job)) dropped.swap(job->work);
}

void ReadingPool::stop_all() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const Handle& job : waiting_) job->stop.request_stop();
    for (const Handle& job : running_) job->stop.request_stop();
  }
  wake_.notify_all();
}

void ReadingPool::stop() {
  stop_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

ReadingPool::Counts ReadingPool::counts() const {
  const std::lock_guard lock(mutex_);
  return {int(threads_.size()), int(running_.size()), int(waiting_.size())};
}

void ReadingPool::work() {
  for (;;) {
    Handle job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      job = waiting_.front();
      waiting_.pop_front();
      running_.push_back(job);
    }
    job->work(StopCheck(job->stop.get_token(), &on_check));
    job->work = nullptr;  // and what it holds, while others keep the handle
    const std::lock_guard lock(mutex_);
    std::erase(running_, job);
  }
}

}  // namespace ef::server
