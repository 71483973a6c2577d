#include "expertflow/transfer/copy_pipeline.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "expertflow/base/errors.h"
#include "expertflow/transfer/paced_reader.h"
#include "tests/support/seq_points.h"

namespace ef {
namespace {

using testing::SeqPoints;
using Log = std::vector<std::string>;

constexpr uint64_t kSlot = 128;

std::byte pattern(ExpertKey key) { return std::byte(key.layer * 32 + key.expert + 1); }

// Writes each expert's pattern; `before` may fail an attempt, after half of the slot has been overwritten with
// something else.
class FakeReader final : public ExpertReader {
 public:
  uint64_t file_bytes(ExpertKey) const override { return 100; }
  void fill(ExpertKey key, std::span<std::byte> slot, int lane) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_TRUE(lanes_.insert(lane).second) << "two threads on lane " << lane;
    }
    const LaneGuard guard{*this, lane};
    int attempt;
    {
      const std::lock_guard lock(mutex_);
      attempt = attempts_[key]++;
    }
    std::fill(slot.begin(), slot.begin() + long(slot.size() / 2), std::byte{0xee});
    if (before) before(key, attempt);
    if (part)
      for (uint64_t done = 0; done < 100; done += 25) {
        part(key, done);
        checkpoint(lane, done);
      }
    std::fill(slot.begin(), slot.end(), pattern(key));
  }
  int attempts(ExpertKey key) const {
    const std::lock_guard lock(mutex_);
    return attempts_[key];
  }
  std::function<void(ExpertKey, int attempt)> before;
  std::function<void(ExpertKey, uint64_t done)> part;  ///< called before a look at the queue, if set

 private:
  struct LaneGuard {
    FakeReader& self;
    int lane;
    ~LaneGuard() {
      const std::lock_guard lock(self.mutex_);
      self.lanes_.erase(lane);
    }
  };
  mutable std::mutex mutex_;
  mutable std::map<ExpertKey, int> attempts_;
  std::set<int> lanes_;
};

class CopyPipelineTest : public ::testing::Test {
 protected:
  void start(int workers, int slots = 16, int retries = 1) {
    CacheGeometry geometry{{{16, kSlot}, {16, kSlot}}, 64};
    memory_.resize(size_t(slots) * kSlot + 64);
    auto* begin = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    cache_ = std::make_unique<ExpertCache>(geometry, make_policy("lru", {2, nullptr, 0}),
                                           std::span(begin, size_t(slots) * kSlot));
    CopyPipelineOptions options;
    options.workers = workers;
    options.retries = retries;
    options.hook = [this](std::string_view point, ExpertKey key) { points_.pass(name(point, key)); };
    pipeline_ = std::make_unique<CopyPipeline>(reader_, *cache_, clock_, options);
  }
  static std::string name(std::string_view point, ExpertKey key) {
    return fmt::format("{} {}.{}", point, key.layer, key.expert);
  }
  void submit(std::vector<ExpertId> experts, CopyPriority priority) {
    std::vector<Copy> copies;
    for (const ExpertId e : experts) {
      const auto grant = cache_->reserve({0, e}, 0);
      ASSERT_TRUE(grant);
      copies.push_back({{0, e}, grant->slot});
    }
    pipeline_->submit(copies, priority);
  }
  bool resident(ExpertId e) const {
    const auto look = cache_->look({0, e});
    return look.state == ExpertState::kResident && look.slot.size() == kSlot &&
           std::all_of(look.slot.begin(), look.slot.end(), [&](std::byte b) {
             return b == pattern({0, e});
           });
  }
  ExpertState state(ExpertId e) const { return cache_->look({0, e}).state; }
  std::string error(ExpertId e) const {
    try {
      if (const auto error = cache_->look({0, e}).error) std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }

  FakeReader reader_;
  ManualClock clock_;
  SeqPoints points_;
  std::vector<std::byte> memory_;
  std::unique_ptr<ExpertCache> cache_;
  std::unique_ptr<CopyPipeline> pipeline_;
};

TEST_F(CopyPipelineTest, FillsSlots) {
  start(2);
  submit({0, 1, 2, 3, 4}, CopyPriority::kDemand);
  pipeline_->drain();
  for (ExpertId e = 0; e < 5; ++e) EXPECT_TRUE(resident(e)) << e;
  const CopyStats stats = pipeline_->stats();
  EXPECT_EQ(stats.copies, 5u);
  EXPECT_EQ(stats.bytes_read, 500u);
  EXPECT_EQ(stats.failed + stats.retries + stats.cancelled + stats.queued + stats.active, 0u);
}

TEST_F(CopyPipelineTest, RefusesToHaveNoReaders) { EXPECT_THROW(start(0), ConfigError); }

TEST_F(CopyPipelineTest, DemandGoesBeforePrefetch) {
  start(1);
  points_.hold("start 0.0");
  submit({0}, CopyPriority::kPrefetch);
  points_.wait_for("start 0.0");
  submit({1, 2}, CopyPriority::kPrefetch);
  submit({3, 4}, CopyPriority::kDemand);
  EXPECT_EQ(pipeline_->stats().queued, 4u);
  EXPECT_EQ(pipeline_->stats().active, 1u);
  points_.let_go("start 0.0");
  pipeline_->drain();
  EXPECT_EQ(points_.log("start"), (Log{"start 0.0", "start 0.3", "start 0.4", "start 0.1", "start 0.2"}));
}

TEST_F(CopyPipelineTest, TheNearestLayerIsPrefetchedFirst) {
  start(1);
  points_.hold("start 0.0");
  submit({0}, CopyPriority::kDemand);
  points_.wait_for("start 0.0");
  const auto prefetch = [&](ExpertKey key) {
    const Copy copy{key, cache_->reserve(key, 0)->slot};
    pipeline_->submit({&copy, 1}, CopyPriority::kPrefetch);
  };
  for (const ExpertKey key : {ExpertKey{1, 5}, ExpertKey{0, 2}, ExpertKey{1, 3}, ExpertKey{0, 1}}) prefetch(key);
  points_.let_go("start 0.0");
  pipeline_->drain();
  EXPECT_EQ(points_.log("start"), (Log{"start 0.0", "start 0.2", "start 0.1", "start 1.5", "start 1.3"}));
}

TEST_F(CopyPipelineTest, APromotedPrefetchIsADemand) {
  start(1);
  points_.hold("start 0.0");
  submit({0}, CopyPriority::kDemand);
  points_.wait_for("start 0.0");
  submit({1, 2, 3}, CopyPriority::kPrefetch);
  pipeline_->promote({0, 3});
  pipeline_->promote({0, 0});   // under way
  pipeline_->promote({1, 15});  // unknown
  EXPECT_EQ(pipeline_->cancel_prefetches(), 2u);
  points_.let_go("start 0.0");
  pipeline_->drain();
  EXPECT_EQ(points_.log("start"), (Log{"start 0.0", "start 0.3"}));
  EXPECT_TRUE(resident(3));
}

TEST_F(CopyPipelineTest, CancelledPrefetchesGiveTheirSlotsBack) {
  start(1);
  points_.hold("start 0.0");
  submit({0}, CopyPriority::kPrefetch);
  points_.wait_for("start 0.0");
  submit({1, 2}, CopyPriority::kPrefetch);
  EXPECT_EQ(cache_->stats().in_flight, 3u);
  EXPECT_EQ(pipeline_->cancel_prefetches(), 2u);
  EXPECT_EQ(state(1), ExpertState::kAbsent);
  EXPECT_EQ(error(1), "") << "cancelled is not failed";
  EXPECT_EQ(cache_->stats().bytes_in_use, kSlot);
  points_.let_go("start 0.0");
  pipeline_->drain();
  EXPECT_TRUE(resident(0));
  EXPECT_EQ(pipeline_->stats().cancelled, 2u);
  EXPECT_EQ(reader_.attempts({0, 1}), 0);
  submit({1}, CopyPriority::kPrefetch);  // may be asked for again
  pipeline_->drain();
  EXPECT_TRUE(resident(1));
}

TEST_F(CopyPipelineTest, PrefetchesLeaveReadersForDemands) {
  start(4);
  points_.hold("start 0.0");
  points_.hold("start 0.1");
  submit({0, 1, 2}, CopyPriority::kPrefetch);
  points_.wait_for("start 0.0");
  points_.wait_for("start 0.1");
  submit({3}, CopyPriority::kDemand);
  points_.wait_for("complete 0.3");
  EXPECT_TRUE(points_.log("start 0.2").empty()) << "two of four readers are the most";
  pipeline_->promote({0, 2});  // now it is asked for
  points_.wait_for("complete 0.2");
  points_.let_go("start 0.0");
  points_.let_go("start 0.1");
  pipeline_->drain();
  for (ExpertId e = 0; e < 4; ++e) EXPECT_TRUE(resident(e)) << e;
}

TEST_F(CopyPipelineTest, NoPrefetchBeginsBesideADemand) {
  start(4);
  points_.hold("start 0.0");
  submit({0}, CopyPriority::kDemand);
  points_.wait_for("start 0.0");
  submit({1}, CopyPriority::kPrefetch);
  submit({2}, CopyPriority::kDemand);
  points_.wait_for("complete 0.2");
  EXPECT_TRUE(points_.log("start 0.1").empty());
  EXPECT_EQ(pipeline_->stats().prefetch_bytes, 100u);
  points_.let_go("start 0.0");
  pipeline_->drain();
  EXPECT_TRUE(resident(1));
  EXPECT_EQ(pipeline_->stats().bytes_ahead, 100u);
}

// Named points of a fill: "part L.E DONE".
class PrefetchUnderWay : public CopyPipelineTest {
 protected:
  PrefetchUnderWay() {
    reader_.part = [this](ExpertKey key, uint64_t done) {
      points_.pass(fmt::format("part {}.{} {}", key.layer, key.expert, done));
    };
  }
  // Prefetch 0 is held with 50 of its 100 bytes read.
  void start_half() {
    start(2);
    points_.hold("part 0.0 50");
    submit({0}, CopyPriority::kPrefetch);
    points_.wait_for("part 0.0 50");
  }
};

TEST_F(PrefetchUnderWay, WaitsForDemands) {
  start_half();
  points_.hold("part 0.1 75");
  submit({1}, CopyPriority::kDemand);
  points_.wait_for("part 0.1 75");
  points_.let_go("part 0.0 50");
  while (pipeline_->stats().pauses == 0) std::this_thread::yield();
  EXPECT_DOUBLE_EQ(pipeline_->progress({0, 0}), 0.5);
  points_.let_go("part 0.1 75");
  pipeline_->drain();
  EXPECT_TRUE(resident(0));
  EXPECT_TRUE(resident(1));
  const auto parts = points_.log("part 0.0 75");
  ASSERT_EQ(parts.size(), 1u);
  const auto all = points_.log();
  const auto place = [&](const std::string& point) { return std::find(all.begin(), all.end(), point) - all.begin(); };
  EXPECT_LT(place("filled 0.1"), place("part 0.0 75"));
}

TEST_F(PrefetchUnderWay, GoesOnWhenPromoted) {
  start_half();
  points_.hold("part 0.1 75");
  submit({1}, CopyPriority::kDemand);
  points_.wait_for("part 0.1 75");
  points_.let_go("part 0.0 50");
  while (pipeline_->stats().pauses == 0) std::this_thread::yield();
  pipeline_->promote({0, 0});
  points_.wait_for("complete 0.0");
  EXPECT_EQ(pipeline_->stats().bytes_ahead, 0u) << "somebody asked for it";
  points_.let_go("part 0.1 75");
  pipeline_->drain();
}

TEST_F(PrefetchUnderWay, EndsWhenCancelled) {
  start_half();
  EXPECT_EQ(pipeline_->cancel_prefetches(), 0u) << "none was queued";
  points_.let_go("part 0.0 50");
  pipeline_->drain();
  EXPECT_EQ(state(0), ExpertState::kAbsent);
  EXPECT_EQ(error(0), "");
  const CopyStats stats = pipeline_->stats();
  EXPECT_EQ(stats.cancelled, 1u);
  EXPECT_EQ(stats.bytes_cancelled, 50u);
  EXPECT_EQ(stats.bytes_read, 0u);
  EXPECT_EQ(cache_->stats().bytes_in_use, 0u);
  reader_.part = {};
  submit({0}, CopyPriority::kDemand);
  pipeline_->drain();
  EXPECT_TRUE(resident(0));
}

TEST_F(PrefetchUnderWay, IsKeptWhenItIsAskedForAfterAll) {
  start_half();
  pipeline_->cancel_prefetches();
  pipeline_->promote({0, 0});
  points_.let_go("part 0.0 50");
  pipeline_->drain();
  EXPECT_TRUE(resident(0));
}

TEST_F(PrefetchUnderWay, TheOnlyReaderDoesNotWaitForItself) {
  start(1);
  points_.hold("part 0.0 50");
  submit({0}, CopyPriority::kPrefetch);
  points_.wait_for("part 0.0 50");
  submit({1}, CopyPriority::kDemand);
  points_.let_go("part 0.0 50");
  pipeline_->drain();
  EXPECT_TRUE(resident(0));
  EXPECT_TRUE(resident(1));
}

TEST_F(CopyPipelineTest, TheTimeOfDemandsIsCounted) {
  start(1);
  reader_.before = [this](ExpertKey, int) { clock_.advance(std::chrono::milliseconds(250)); };
  submit({0, 1}, CopyPriority::kDemand);
  pipeline_->drain();
  submit({2}, CopyPriority::kPrefetch);
  pipeline_->drain();
  const CopyStats stats = pipeline_->stats();
  EXPECT_DOUBLE_EQ(stats.demand_busy_seconds, 0.5);
  EXPECT_DOUBLE_EQ(stats.busy_seconds, 0.75);
}

// 1 MB at 1 MB/s behind a reader that takes 0.3 s itself: a second in all, and the next one a second more.
TEST(PacedReader, TakesWhatTheLinkTakes) {
  class Slow final : public ExpertReader {
   public:
    explicit Slow(ManualClock& clock) : clock_(clock) {}
    uint64_t file_bytes(ExpertKey) const override { return 1000000; }
    void fill(ExpertKey, std::span<std::byte>, int) override { clock_.advance(std::chrono::milliseconds(300)); }

   private:
    ManualClock& clock_;
  };
  ManualClock clock;
  Slow slow(clock);
  PacedReader paced(slow, 1e6, clock, [&](Duration until) { clock.advance(until - clock.now()); });
  paced.fill({0, 0}, {}, 0);
  EXPECT_NEAR(seconds(clock.now()), 1, 1e-6);
  paced.fill({0, 1}, {}, 0);
  EXPECT_NEAR(seconds(clock.now()), 2, 1e-6);
  clock.advance(std::chrono::seconds(10));
  paced.fill({0, 2}, {}, 0);
  EXPECT_NEAR(seconds(clock.now()), 13, 1e-6) << "idle time is not saved up";
}

TEST_F(CopyPipelineTest, OnlyWhatIsPickedIsCancelled) {
  start(1);
  points_.hold("start 0.0");
  submit({0}, CopyPriority::kPrefetch);
  points_.wait_for("start 0.0");
  submit({1, 2, 3}, CopyPriority::kPrefetch);
  EXPECT_EQ(pipeline_->cancel_prefetches([](ExpertKey key) { return key.expert != 2; }), 2u);
  points_.let_go("start 0.0");
  pipeline_->drain();
  EXPECT_EQ(points_.log("start"), (Log{"start 0.0", "start 0.2"}));
  EXPECT_TRUE(resident(2));
  EXPECT_EQ(state(1), ExpertState::kAbsent);
}

TEST_F(CopyPipelineTest, CopiesCompleteInAnyOrder) {
  start(2);
  points_.hold("filled 0.0");
  submit({0, 1}, CopyPriority::kDemand);
  points_.wait_for("complete 0.1");
  EXPECT_TRUE(resident(1));
  EXPECT_EQ(state(0), ExpertState::kInFlight) << "filled, but the cache does not know";
  EXPECT_TRUE(cache_->look({0, 0}).slot.empty());
  points_.let_go("filled 0.0");
  pipeline_->drain();
  EXPECT_TRUE(resident(0));
}

TEST_F(CopyPipelineTest, AFailedReadIsTriedAgain) {
  start(1);
  reader_.before = [](ExpertKey, int attempt) {
    if (attempt == 0) fail<DeviceError>("model.gguf: short read");
  };
  submit({5}, CopyPriority::kDemand);
  pipeline_->drain();
  EXPECT_TRUE(resident(5));
  EXPECT_EQ(pipeline_->stats().retries, 1u);
  EXPECT_EQ(pipeline_->stats().copies, 1u);
  EXPECT_EQ(pipeline_->stats().failed, 0u);
}

TEST_F(CopyPipelineTest, AReadThatFailsTwiceIsAnErrorAndNoExpert) {
  start(1);
  reader_.before = [](ExpertKey key, int attempt) {
    if (key.expert == 5 && attempt < 2) fail<DeviceError>("model.gguf: read at 4096: attempt {}", attempt);
  };
  submit({5, 6}, CopyPriority::kDemand);
  pipeline_->drain();
  EXPECT_EQ(state(5), ExpertState::kAbsent);
  EXPECT_EQ(error(5), "model.gguf: read at 4096: attempt 1");
  EXPECT_EQ(reader_.attempts({0, 5}), 2) << "bounded";
  EXPECT_TRUE(resident(6)) << "others are served";
  EXPECT_EQ(pipeline_->stats().failed, 1u);
  EXPECT_EQ(pipeline_->stats().bytes_read, 100u);
  EXPECT_EQ(cache_->stats().bytes_in_use, kSlot);
  submit({5}, CopyPriority::kDemand);
  pipeline_->drain();
  EXPECT_TRUE(resident(5));
  EXPECT_EQ(error(5), "");
}

TEST_F(CopyPipelineTest, BadContentIsNotReadAgain) {
  start(1);
  reader_.before = [](ExpertKey, int) { fail<ModelError>("scale is NaN"); };
  submit({5}, CopyPriority::kDemand);
  pipeline_->drain();
  EXPECT_EQ(reader_.attempts({0, 5}), 1);
  EXPECT_EQ(error(5), "scale is NaN");
}

TEST_F(CopyPipelineTest, AnyExceptionReachesTheWaiter) {
  start(1);
  reader_.before = [](ExpertKey, int) { throw std::bad_alloc(); };
  submit({5}, CopyPriority::kDemand);
  pipeline_->drain();
  EXPECT_EQ(error(5), "std::bad_alloc");
}

TEST_F(CopyPipelineTest, TheDestructorTakesQueuedCopiesBack) {
  start(1);
  points_.hold("start 0.0");
  submit({0}, CopyPriority::kDemand);
  points_.wait_for("start 0.0");
  submit({1}, CopyPriority::kDemand);
  submit({2}, CopyPriority::kPrefetch);
  std::thread destroyer([&] { pipeline_.reset(); });
  const std::vector<ExpertKey> queued = {{0, 2}};
  cache_->wait_any(queued);  // taken back before the worker is waited for
  points_.let_go("start 0.0");
  destroyer.join();
  EXPECT_TRUE(resident(0)) << "the copy under way ended";
  EXPECT_EQ(state(1), ExpertState::kAbsent);
  EXPECT_EQ(state(2), ExpertState::kAbsent);
}

TEST_F(CopyPipelineTest, BandwidthIsMeasuredByTheInjectedClock) {
  start(1);
  reader_.before = [this](ExpertKey, int) { clock_.advance(std::chrono::milliseconds(250)); };
  EXPECT_EQ(pipeline_->stats().bytes_per_second, 0.);
  submit({0, 1, 2, 3}, CopyPriority::kDemand);
  pipeline_->drain();
  EXPECT_DOUBLE_EQ(pipeline_->stats().bytes_per_second, 400.);  // 100 bytes in a quarter of a second
  EXPECT_DOUBLE_EQ(pipeline_->stats().busy_seconds, 1.);
}

TEST(BandwidthEstimate, OverlappingCopiesShareTheTime) {
  using std::chrono::seconds;
  BandwidthEstimate estimate;
  estimate.begin(seconds(10));
  estimate.begin(seconds(10));
  estimate.end(seconds(11), 100);
  estimate.end(seconds(12), 100);
  EXPECT_DOUBLE_EQ(estimate.bytes_per_second(), (100 * 0.9 + 100) / (1 * 0.9 + 1));
  // Idle time does not count.
  estimate.begin(seconds(1000));
  estimate.end(seconds(1001), 100);
  EXPECT_NEAR(estimate.bytes_per_second(), 100, 1e-9);
  // A failed copy costs time and brings nothing.
  estimate.begin(seconds(2000));
  estimate.end(seconds(2001), 0);
  EXPECT_LT(estimate.bytes_per_second(), 100);
}

TEST(BandwidthEstimate, FollowsAChange) {
  using std::chrono::seconds;
  BandwidthEstimate estimate;
  for (int i = 0; i < 100; ++i) {
    estimate.begin(seconds(i));
    estimate.end(seconds(i + 1), 1000);
  }
  EXPECT_NEAR(estimate.bytes_per_second(), 1000, 1e-6);
  for (int i = 100; i < 130; ++i) {
    estimate.begin(seconds(i));
    estimate.end(seconds(i + 1), 100);
  }
  // 0.9^30 = 4.2 % of the old weight is left.
  EXPECT_NEAR(estimate.bytes_per_second(), 100 + 900 * 0.0424, 1);
}

// One thread runs steps, one prefetches, one cancels; reads fail at random. Whatever is resident holds its own bytes.
TEST_F(CopyPipelineTest, StressKeepsEveryByteRight) {
  start(3, 5);
  std::atomic<int> reads{0};
  reader_.before = [&](ExpertKey, int) {
    if (++reads % 7 == 0) fail<DeviceError>("injected");
  };
  std::atomic<bool> stop{false};
  std::thread prefetcher([&] {
    std::mt19937 random(1);
    while (!stop) {
      const ExpertKey key{LayerId(random() % 2), ExpertId(random() % 16)};
      if (const auto grant = cache_->reserve(key, 0)) {
        const Copy copy{key, grant->slot};
        pipeline_->submit({&copy, 1}, CopyPriority::kPrefetch);
      }
    }
  });
  std::thread canceller([&] {
    while (!stop) pipeline_->cancel_prefetches();
  });
  std::mt19937 random(2);
  int served = 0;
  for (int i = 0; i < 400; ++i) {
    const StepId step = cache_->begin_step();
    const LayerId layer = LayerId(i % 2);
    const std::vector<ExpertId> wanted = {ExpertId(random() % 8), ExpertId(8 + random() % 8)};
    const std::vector<int32_t> tokens = {1, 1};
    const ExpertCache::Request request{step, layer, wanted, tokens, false};
    std::vector<ExpertCache::Grant> granted;
    std::vector<ExpertId> deferred;
    cache_->open(request, granted, deferred);
    while (!granted.empty() || !deferred.empty()) {
      const uint64_t seen = cache_->changes();
      for (const auto& grant : granted) {
        const ExpertKey key{layer, grant.expert};
        const Copy copy{key, grant.slot};
        if (grant.fill) pipeline_->submit({&copy, 1}, CopyPriority::kDemand);
        if (!grant.fill) pipeline_->promote(key);
        const std::vector<ExpertKey> keys = {key};
        cache_->wait_any(keys);
        const auto look = cache_->look(key);
        for (const std::byte b : look.slot) ASSERT_EQ(b, pattern(key));
        served += look.state == ExpertState::kResident;
        cache_->release(step, key);
      }
      cache_->grant(request, deferred, granted);
      if (granted.empty() && !deferred.empty()) cache_->wait_change(seen);
    }
    cache_->end_step(step);
  }
  stop = true;
  prefetcher.join();
  canceller.join();
  pipeline_->drain();
  EXPECT_GT(served, 700);
  EXPECT_GT(cache_->stats().evictions, 0u);
  EXPECT_EQ(cache_->stats().in_flight, 0u);
  const CopyStats stats = pipeline_->stats();
  EXPECT_EQ(stats.copies, cache_->stats().fills);
  EXPECT_EQ(stats.failed, cache_->stats().failed_fills);
}

}  // namespace
}  // namespace ef
