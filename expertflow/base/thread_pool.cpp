#include "expertflow/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "expertflow/base/errors.h"
#include "expertflow/base/topology.h"

namespace ef {

namespace {

constexpr uint32_t kLoop = 1u << 16, kOpen = 1u << 15, kJoined = kOpen - 1;

// How long a thread looks before it sleeps: a few times what waking one takes.
constexpr std::chrono::microseconds kLook{60};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns at the latest when `value` is no longer `old`; may return before.
void await_change(std::atomic<uint32_t>& value, uint32_t old) {
  const auto end = std::chrono::steady_clock::now() + kLook;
  constexpr int kBetweenClocks = 32;
  do {
    for (int i = 0; i < kBetweenClocks; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

void bind(std::thread& thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  const int error = pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
  EF_CHECK(error == 0, ConfigError, "threads: cannot bind one to processor {}: {}", processor,
           std::generic_category().message(error));
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::span<const int> processors)
    : size_(std::min(threads > 0 ? threads : default_threads(), int(kJoined))) {
  try {
    for (int i = 1; i < size_; ++i) {
      threads_.emplace_back([this, i] { work(i); });
      if (size_t(i) < processors.size()) bind(threads_.back(), processors[size_t(i)]);
    }
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    stop();
    fail<ConfigError>("threads: {} were asked for, the system gave {}: {}", size_, started + 1, error.what());
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  state_ += kLoop;
  state_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(1, grain);
  if (size_ == 1 || n <= grain) {
    for (int64_t i = 0; i < n; i += grain) body(i, std::min(n, i + grain), 0);
    return;
  }
  body_ = &body;
  n_ = n, grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  left_.store(0, std::memory_order_relaxed);
  state_.store(((state_.load(std::memory_order_relaxed) & ~(kLoop - 1)) + kLoop) | kOpen, std::memory_order_release);
  state_.notify_all();
  run_ranges(0);
  // Who has not joined by now is not waited for.
  const uint32_t joined = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & kJoined;
  for (uint32_t left; (left = left_.load(std::memory_order_acquire)) != joined;) await_change(left_, left);
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::run_ranges(int worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= n_) return;
    try {
      (*body_)(begin, std::min(n_, begin + grain_), worker);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
      next_.store(n_, std::memory_order_relaxed);  // no further ranges
    }
  }
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;  // number of the loop that this thread joined last
  for (;;) {
    uint32_t state = state_.load(std::memory_order_acquire);
    if (stop_) return;
    if (!(state & kOpen) || state / kLoop == seen) {
      await_change(state_, state);
      continue;
    }
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
    seen = state / kLoop;
    run_ranges(worker);
    left_.fetch_add(1, std::memory_order_release);
    left_.notify_one();
  }
}

}  // namespace ef
