#include "expertflow/base/thread_pool.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <numeric>
#include <stdexcept>

#include "expertflow/base/errors.h"
#include "expertflow/base/topology.h"

namespace ef {
namespace {

TEST(ThreadPool, VisitsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<int> hits(1003, 0);
    pool.parallel_for(1003, 7, [&](int64_t b, int64_t e, int worker) {
      ASSERT_GE(worker, 0);
      ASSERT_LT(worker, threads);
      for (int64_t i = b; i < e; ++i) ++hits[size_t(i)];
    });
    EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), 1003);
    EXPECT_EQ(*std::min_element(hits.begin(), hits.end()), 1);
  }
}

TEST(ThreadPool, RethrowsTheFirstExceptionAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(100, 1,
                                 [](int64_t b, int64_t, int) {
                                   if (b == 50) throw std::runtime_error("x");
                                 }),
               std::runtime_error);
  std::atomic<int> count{0};
  pool.parallel_for(10, 1, [&](int64_t, int64_t, int) { ++count; });
  EXPECT_EQ(count, 10);
}

// Loops so short that threads come late, or not at all, to many of them.
TEST(ThreadPool, ManyShortLoopsLoseNothing) {
  ThreadPool pool(4);
  int64_t sum = 0;
  std::vector<int64_t> parts(3);
  for (int64_t i = 0; i < 20000; ++i) {
    pool.parallel_for(3, 1, [&](int64_t b, int64_t, int) { parts[size_t(b)] = i + b; });
    sum += parts[0] + parts[1] + parts[2];
  }
  EXPECT_EQ(sum, 3 * (20000LL * 19999 / 2) + 3 * 20000);
}

TEST(ThreadPool, BindsItsThreads) {
  const auto processors = read_topology().processors;
  ASSERT_FALSE(processors.empty());
  EXPECT_GE(processors.size(), size_t(default_threads()));
  const std::vector<int> last = {processors.back(), processors.back()};
  ThreadPool pool(2, last);
  std::atomic<bool> elsewhere{false}, came{false};
  for (int i = 0; i < 1000 && !came; ++i)
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int worker) {
      if (worker == 0) {
        std::this_thread::yield();
        return;
      }
      came = true;
      if (sched_getcpu() != last[1]) elsewhere = true;
    });
  EXPECT_FALSE(elsewhere);
  const std::vector<int> unknown = {0, CPU_SETSIZE - 1};
  EXPECT_THROW(ThreadPool(2, unknown), ConfigError);
}

}  // namespace
}  // namespace ef
