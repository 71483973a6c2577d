#include "expertflow/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>

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

}  // namespace
}  // namespace ef
