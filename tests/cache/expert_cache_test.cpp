#include "expertflow/cache/expert_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "expertflow/base/errors.h"
#include "tests/support/test_name.h"

namespace ef {
namespace {

using Ids = std::vector<ExpertId>;

// A cache over its own memory, filled by hand. Slots of layer l: slot_bytes[l].
class Harness {
 public:
  Harness(std::vector<uint64_t> slot_bytes, int experts, uint64_t pool, std::string_view policy = "lru",
          ExpertCacheOptions options = {}) {
    CacheGeometry geometry;
    geometry.page_bytes = 64;
    for (const uint64_t bytes : slot_bytes) geometry.layers.push_back({bytes ? experts : 0, bytes});
    memory_.resize(pool / 64 + 1);
    cache_ = std::make_unique<ExpertCache>(geometry, make_policy(policy, {int(slot_bytes.size()), nullptr, 0}),
                                           std::span(reinterpret_cast<std::byte*>(memory_.data()), pool), options);
  }
  ExpertCache* operator->() { return cache_.get(); }

  // Opens an event; granted and deferred hold what came of it.
  void open(StepId step, LayerId layer, Ids experts, bool transient = false) {
    experts_ = std::move(experts);
    tokens_.assign(experts_.size(), 1);
    request_ = {step, layer, experts_, tokens_, transient};
    cache_->open(request_, granted_, deferred_);
  }
  void grant() { cache_->grant(request_, deferred_, granted_); }
  // Fills what was granted with its key.
  void fill() {
    for (const auto& grant : granted_) {
      if (!grant.fill) continue;
      write({request_.layer, grant.expert}, grant.slot);
      cache_->complete({request_.layer, grant.expert});
    }
  }
  static void write(ExpertKey key, std::span<std::byte> slot) {
    std::fill(slot.begin(), slot.end(), std::byte(key.layer * 16 + key.expert));
  }
  bool holds_own_bytes(ExpertKey key) {
    const auto slot = cache_->look(key).slot;
    return !slot.empty() && std::all_of(slot.begin(), slot.end(),
                                        [&](std::byte b) { return b == std::byte(key.layer * 16 + key.expert); });
  }
  // A whole event of a step of its own.
  void use(LayerId layer, Ids experts, bool transient = false) {
    const StepId step = cache_->begin_step();
    open(step, layer, std::move(experts), transient);
    fill();
    cache_->end_step(step);
  }
  bool resident(LayerId layer, ExpertId expert) {
    return cache_->look({layer, expert}).state == ExpertState::kResident;
  }
  Ids granted() const {
    Ids out;
    for (const auto& grant : granted_) out.push_back(grant.expert);
    return out;
  }

  std::vector<ExpertCache::Grant> granted_;
  Ids deferred_;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
  std::unique_ptr<ExpertCache> cache_;
  Ids experts_;
  std::vector<int32_t> tokens_;
  ExpertCache::Request request_;
};

TEST(CacheGeometry, RoundsSlotsToPages) {
  CacheGeometry geometry{{{4, 100}, {0, 0}, {2, 4096}, {2, 5000}}, 4096};
  EXPECT_EQ(geometry.footprint(0), 4096u);
  EXPECT_EQ(geometry.footprint(1), 0u);
  EXPECT_EQ(geometry.footprint(2), 4096u);
  EXPECT_EQ(geometry.footprint(3), 8192u);
  EXPECT_EQ(geometry.largest_footprint(), 8192u);
  EXPECT_EQ(geometry.total_footprint(), 4u * 4096 + 2 * 4096 + 2 * 8192);
  EXPECT_EQ(geometry.pool_bytes(10000), 8192u);
  EXPECT_EQ(geometry.pool_bytes(1 << 30), geometry.total_footprint());
}

TEST(ExpertCache, RefusesAPoolSmallerThanTheLargestSlot) {
  try {
    Harness harness({64, 128}, 4, 127);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "expert cache: 127 bytes are too few: the largest expert takes 128 bytes (8 experts take 768)");
  }
}

TEST(ExpertCache, MissThenHit) {
  Harness cache({64}, 4, 256);
  const StepId step = cache->begin_step();
  cache.open(step, 0, {2, 3});
  EXPECT_EQ(cache.granted(), (Ids{2, 3}));
  EXPECT_TRUE(cache.granted_[0].fill);
  EXPECT_EQ(cache.granted_[0].state, ExpertState::kInFlight);
  EXPECT_EQ(cache->page_of({0, 2}), -1) << "not before the copy has landed";
  cache.fill();
  cache->end_step(step);
  EXPECT_TRUE(cache.holds_own_bytes({0, 2}));
  EXPECT_EQ(cache->page_of({0, 2}), 0);
  EXPECT_EQ(cache->page_of({0, 3}), 1);

  cache.open(cache->begin_step(), 0, {1, 2});
  EXPECT_EQ(cache.granted(), (Ids{2, 1})) << "residents first";
  EXPECT_FALSE(cache.granted_[0].fill);
  EXPECT_TRUE(cache.granted_[1].fill);
  const CacheStats stats = cache->stats();
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.misses, 3u);
  EXPECT_EQ(stats.hit_rate(), 0.25);
  EXPECT_EQ(stats.fills, 2u);
  EXPECT_EQ(stats.bytes_filled, 128u);
  EXPECT_EQ(stats.residents, 2u);
  EXPECT_EQ(stats.in_flight, 1u);
  EXPECT_EQ(stats.bytes_in_use, 192u);
  EXPECT_EQ(stats.bytes_in_flight, 64u);
  EXPECT_EQ(stats.layers[0].hits, 1u);
  EXPECT_EQ(stats.layers[0].misses, 3u);
  EXPECT_EQ(stats.layers[0].bytes_filled, 128u);
}

TEST(ExpertCache, AMissNeverTakesTheSlotOfAHitOfItsEvent) {
  Harness cache({64}, 8, 128);
  cache.use(0, {6, 7});
  const StepId step = cache->begin_step();
  // 7 is the oldest by key order, yet wanted; the absent ones come first in the list.
  cache.open(step, 0, {0, 1, 6, 7});
  EXPECT_EQ(cache.granted(), (Ids{6, 7}));
  EXPECT_EQ(cache.deferred_, (Ids{0, 1}));
  EXPECT_EQ(cache->stats().deferred, 2u);
  cache.grant();
  EXPECT_TRUE(cache.granted_.empty()) << "everything is pinned";
  cache->release(step, {0, 7});
  cache.grant();
  EXPECT_EQ(cache.granted(), (Ids{0}));
  EXPECT_EQ(cache.deferred_, (Ids{1}));
  EXPECT_TRUE(cache.resident(0, 6));
  EXPECT_FALSE(cache.resident(0, 7));
}

TEST(ExpertCache, PinsHoldUntilTheStepEnds) {
  Harness cache({64, 64}, 4, 128);
  const StepId first = cache->begin_step();
  cache.open(first, 0, {0, 1});
  cache.fill();
  const StepId second = cache->begin_step();
  cache.open(second, 1, {0});
  EXPECT_TRUE(cache.granted_.empty());
  EXPECT_TRUE(cache.resident(0, 0) && cache.resident(0, 1));
  cache->end_step(first);
  cache.grant();
  EXPECT_EQ(cache.granted(), (Ids{0}));
}

TEST(ExpertCache, TwoStepsPinTheSameExpert) {
  Harness cache({64}, 4, 64);
  const StepId first = cache->begin_step(), second = cache->begin_step();
  cache.open(first, 0, {0});
  cache.fill();
  cache.open(second, 0, {0});
  cache->end_step(first);
  const StepId third = cache->begin_step();
  cache.open(third, 0, {1});
  EXPECT_TRUE(cache.granted_.empty());
  cache->end_step(second);
  cache.grant();
  EXPECT_EQ(cache.granted(), (Ids{1}));
}

TEST(ExpertCache, CopiesInFlightAreNotEvicted) {
  Harness cache({64}, 4, 64);
  const StepId step = cache->begin_step();
  cache.open(step, 0, {0});
  cache->end_step(step);  // gave up waiting: the copy still writes to the slot
  cache.open(cache->begin_step(), 0, {1});
  EXPECT_TRUE(cache.granted_.empty());
  cache->complete({0, 0});
  cache.grant();
  EXPECT_EQ(cache.granted(), (Ids{1}));
}

TEST(ExpertCache, ALateHitSharesTheCopy) {
  Harness cache({64}, 4, 256);
  const auto prefetch = cache->reserve({0, 3}, 0);
  ASSERT_TRUE(prefetch);
  EXPECT_FALSE(cache->reserve({0, 3}, 0)) << "one copy an expert";
  cache.open(cache->begin_step(), 0, {3});
  ASSERT_EQ(cache.granted_.size(), 1u);
  EXPECT_EQ(cache.granted_[0].state, ExpertState::kInFlight);
  EXPECT_FALSE(cache.granted_[0].fill);
  EXPECT_EQ(cache.granted_[0].slot.data(), prefetch->slot.data());
  EXPECT_EQ(cache->stats().late_hits, 1u);
  EXPECT_EQ(cache->stats().hits + cache->stats().misses, 0u);
  EXPECT_EQ(cache->stats().layers[0].late_hits, 1u);
  EXPECT_EQ(cache->stats().reserved_ready_bytes, 0u) << "it had not come yet";
}

TEST(ExpertCache, WhatWasReadAheadAndThereInTimeIsCountedOnce) {
  Harness cache({64}, 4, 256);
  for (const ExpertId expert : {1, 2}) {
    const auto ahead = cache->reserve({0, expert}, 0);
    ASSERT_TRUE(ahead);
    Harness::write({0, expert}, ahead->slot);
    cache->complete({0, expert});
  }
  cache.use(0, {1, 3});
  EXPECT_EQ(cache->stats().reserved_ready_bytes, 64u);
  cache.use(0, {1, 3});
  EXPECT_EQ(cache->stats().reserved_ready_bytes, 64u);
}

TEST(ExpertCache, CountsWhatIsPinned) {
  Harness cache({64}, 4, 256);
  const StepId first = cache->begin_step(), second = cache->begin_step();
  cache.open(first, 0, {0, 1});
  cache.fill();
  cache.open(second, 0, {1});
  EXPECT_EQ(cache->stats().pinned, 2u) << "experts, not pins";
  cache->release(first, {0, 1});
  EXPECT_EQ(cache->stats().pinned, 2u);
  cache->end_step(second);
  EXPECT_EQ(cache->stats().pinned, 1u);
  cache->end_step(first);
  EXPECT_EQ(cache->stats().pinned, 0u);
}

TEST(ExpertCache, PrefetchTakesNothingFromOpenSteps) {
  Harness cache({64, 64}, 4, 128);
  const StepId step = cache->begin_step();
  cache.open(step, 0, {0, 1});
  cache.fill();
  cache->release(step, {0, 0});
  cache->release(step, {0, 1});
  EXPECT_FALSE(cache->reserve({1, 2}, 0)) << "doing nothing is an answer";
  cache->end_step(step);
  EXPECT_TRUE(cache->reserve({1, 2}, 0));
}

TEST(ExpertCache, AFailedCopyIsNoExpert) {
  Harness cache({64}, 4, 64);
  const StepId step = cache->begin_step();
  cache.open(step, 0, {0});
  cache->fail({0, 0}, std::make_exception_ptr(std::runtime_error("disk")));
  ExpertCache::Look look = cache->look({0, 0});
  EXPECT_EQ(look.state, ExpertState::kAbsent);
  EXPECT_TRUE(look.slot.empty());
  EXPECT_TRUE(look.error);
  EXPECT_EQ(cache->page_of({0, 0}), -1);
  cache->end_step(step);
  EXPECT_EQ(cache->stats().failed_fills, 1u);
  EXPECT_EQ(cache->stats().bytes_in_use, 0u);
  EXPECT_EQ(cache->stats().bytes_in_flight, 0u);
  // It is asked for again, and comes.
  cache.use(0, {0});
  look = cache->look({0, 0});
  EXPECT_EQ(look.state, ExpertState::kResident);
  EXPECT_FALSE(look.error);
}

TEST(ExpertCache, VictimsFollowThePolicy) {
  Harness cache({64}, 8, 192);
  cache.use(0, {0, 1, 2});
  cache.use(0, {0});
  cache.use(0, {2});
  cache.use(0, {5});  // lru: 1 was wanted longest ago
  EXPECT_FALSE(cache.resident(0, 1));
  cache.use(0, {6});  // then 0
  EXPECT_FALSE(cache.resident(0, 0));
  EXPECT_TRUE(cache.resident(0, 2) && cache.resident(0, 5) && cache.resident(0, 6));
  EXPECT_EQ(cache->stats().evictions, 2u);
  EXPECT_EQ(cache->stats().layers[0].evictions, 2u);
}

TEST(ExpertCache, WhatTheOpenStepUsedGoesLast) {
  Harness cache({64, 64, 64}, 4, 192);
  cache.use(2, {0});
  const StepId step = cache->begin_step();
  cache.open(step, 0, {0});
  cache.fill();
  cache->release(step, {0, 0});
  cache.open(step, 1, {0});
  cache.fill();
  cache->release(step, {1, 0});
  // Full. (2,0) is older than both and belongs to no open step: it goes. Then the layer passed last.
  cache.open(step, 1, {1});
  EXPECT_FALSE(cache.resident(2, 0));
  cache.fill();
  cache->release(step, {1, 1});
  cache.open(step, 2, {1});
  EXPECT_TRUE(cache.resident(0, 0)) << "comes around first in the next step";
  EXPECT_TRUE(cache.resident(1, 0));
  EXPECT_FALSE(cache.resident(1, 1));
}

TEST(ExpertCache, LruDoesNotFallOffTheCliff) {
  // Fact: fewer slots than one token's cycle and a plain LRU never hits. Here 3 slots, a cycle of 4.
  Harness cache({64, 64, 64, 64}, 1, 192);
  for (int token = 0; token < 10; ++token) {
    const StepId step = cache->begin_step();
    for (LayerId layer = 0; layer < 4; ++layer) {
      cache.open(step, layer, {0});
      cache.fill();
      cache->release(step, {layer, 0});
    }
    cache->end_step(step);
  }
  // Every token finds the two experts that the last one kept.
  EXPECT_GE(cache->stats().hits, 18u);
}

TEST(ExpertCache, PrefillDoesNotFlushTheDecodeSet) {
  Harness cache({64}, 16, 512, "lru", {0.25});
  cache.use(0, {0, 1, 2, 3, 4, 5, 6, 7});
  // A prefill event wants eight others: two slots (a quarter) are theirs, and they go through them in waves.
  const StepId step = cache->begin_step();
  cache.open(step, 0, {8, 9, 10, 11, 12, 13, 14, 15}, true);
  int waves = 0;
  for (;; ++waves) {
    ASSERT_LE(cache.granted_.size(), 2u);
    ASSERT_FALSE(cache.granted_.empty());
    cache.fill();
    for (const ExpertId e : cache.granted()) cache->release(step, {0, e});
    if (cache.deferred_.empty()) break;
    cache.grant();
  }
  cache->end_step(step);
  EXPECT_EQ(waves, 3);
  int kept = 0;
  for (ExpertId e = 0; e < 8; ++e) kept += cache.resident(0, e);
  EXPECT_EQ(kept, 6);
  // The next decode miss takes a slot of the prefill's, not of the decode set's.
  cache.use(0, {8});
  kept = 0;
  for (ExpertId e = 0; e < 8; ++e) kept += cache.resident(0, e);
  EXPECT_EQ(kept, 6);
}

TEST(ExpertCache, PrefillMayUseWhatIsFree) {
  Harness cache({64}, 16, 512, "lru", {0.25});
  cache.use(0, {0, 1});
  const StepId step = cache->begin_step();
  cache.open(step, 0, {8, 9, 10, 11, 12, 13}, true);
  EXPECT_EQ(cache.granted_.size(), 6u);
}

TEST(ExpertCache, LayersOfDifferentSlotSizesShareThePool) {
  Harness cache({64, 192, 0, 128}, 4, 384, "lru");
  std::mt19937 random(9);
  for (int i = 0; i < 2000; ++i) {
    LayerId layer = LayerId(random() % 3);
    if (layer == 2) layer = 3;
    const ExpertId e = ExpertId(random() % 4);
    cache.use(layer, {e});
    ASSERT_TRUE(cache.holds_own_bytes({layer, e})) << i;
    // Nobody's bytes were overwritten.
    uint64_t used = 0;
    for (const LayerId l : {0, 1, 3}) {
      for (ExpertId x = 0; x < 4; ++x) {
        if (!cache.resident(l, x)) continue;
        ASSERT_TRUE(cache.holds_own_bytes({l, x})) << i;
        used += cache->geometry().footprint(l);
      }
    }
    ASSERT_EQ(used, cache->stats().bytes_in_use);
    ASSERT_LE(used, 384u);
  }
}

TEST(ExpertCache, FragmentationNeverBlocksTheLargest) {
  Harness cache({64, 384}, 8, 384);
  cache.use(0, {0, 1, 2, 3, 4, 5});
  cache.use(1, {0});
  EXPECT_TRUE(cache.holds_own_bytes({1, 0}));
  EXPECT_EQ(cache->stats().evictions, 6u);
}

TEST(ExpertCache, EvictAllMovesExperts) {
  Harness cache({64}, 4, 256);
  cache.use(0, {0, 1});
  const int32_t before = cache->page_of({0, 0});
  cache->evict_all();
  EXPECT_EQ(cache->stats().residents, 0u);
  cache.use(0, {0, 1});
  EXPECT_NE(cache->page_of({0, 0}), before);
  EXPECT_TRUE(cache.holds_own_bytes({0, 0}));
}

TEST(ExpertCache, EvictAllSparesThePinned) {
  Harness cache({64}, 4, 256);
  const StepId step = cache->begin_step();
  cache.open(step, 0, {0, 1});
  cache.fill();
  cache->release(step, {0, 1});
  cache->evict_all();
  EXPECT_TRUE(cache.resident(0, 0));
  EXPECT_FALSE(cache.resident(0, 1));
}

TEST(ExpertCache, WaitersWake) {
  Harness cache({64}, 4, 256);
  cache.open(cache->begin_step(), 0, {0, 1});
  const std::vector<ExpertKey> keys = {{0, 0}, {0, 1}};
  std::thread copier([&] { cache->complete({0, 1}); });
  cache->wait_any(keys);
  copier.join();
  EXPECT_TRUE(cache.resident(0, 1));
  const uint64_t seen = cache->changes();
  std::thread failing([&] { cache->fail({0, 0}, nullptr); });
  cache->wait_change(seen);
  failing.join();
  EXPECT_EQ(cache->look({0, 0}).state, ExpertState::kAbsent);
  EXPECT_EQ(cache->stats().cancelled_fills, 1u);
  cache->wait_any({});  // nothing to wait for
}

#ifdef EF_DEBUG
// The slot of an evicted expert must not look like weights. Read through a pointer kept from before (a use after free).
#if defined(__SANITIZE_ADDRESS__)
TEST(ExpertCacheDeathTest, AFreeSlotIsPoisoned) {
  Harness cache({64}, 4, 64);
  cache.use(0, {0});
  const std::byte* stale = cache->look({0, 0}).slot.data();
  EXPECT_EQ(*stale, std::byte{0});
  cache->evict_all();
  EXPECT_DEATH({ [[maybe_unused]] const std::byte b = *const_cast<const volatile std::byte*>(stale); },
               "use-after-poison");
}
#else
TEST(ExpertCache, AFreeSlotIsPoisoned) {
  Harness cache({64}, 4, 64);
  cache.use(0, {0});
  const std::byte* stale = cache->look({0, 0}).slot.data();
  EXPECT_EQ(*stale, std::byte{0});
  cache->evict_all();
  float value;
  std::memcpy(&value, stale, sizeof value);
  EXPECT_NE(value, value) << "NaN";
}
#endif
#endif

// Everything at once against a model: random events, sizes, releases and failures. Checks the bookkeeping after each
// event.
class CachePolicies : public ::testing::TestWithParam<std::string_view> {};

TEST_P(CachePolicies, RandomEventsKeepTheInvariants) {
  std::mt19937 random(11);
  for (const uint64_t pool : {192u, 320u, 640u, 2048u}) {
    Harness cache({64, 192, 128}, 8, pool, GetParam());
    for (int i = 0; i < 300; ++i) {
      const StepId step = cache->begin_step();
      for (LayerId layer = 0; layer < 3; ++layer) {
        std::set<ExpertId> wanted;
        while (wanted.size() < 1 + random() % 4) wanted.insert(ExpertId(random() % 8));
        std::set<ExpertId> served;
        cache.open(step, layer, Ids(wanted.begin(), wanted.end()), random() % 4 == 0);
        for (;;) {
          ASSERT_FALSE(cache.granted_.empty()) << "no progress";
          for (const auto& grant : cache.granted_) {
            const ExpertKey key{layer, grant.expert};
            if (grant.fill && random() % 16 == 0) {
              cache->fail(key, nullptr);
              cache->release(step, key);
              cache.deferred_.push_back(grant.expert);
              continue;
            }
            if (grant.fill) {
              Harness::write(key, grant.slot);
              cache->complete(key);
            }
            ASSERT_TRUE(cache.holds_own_bytes(key));
            ASSERT_TRUE(served.insert(grant.expert).second);
            cache->release(step, key);
          }
          if (cache.deferred_.empty()) break;
          cache.grant();
        }
        ASSERT_EQ(served, wanted);
        ASSERT_LE(cache->stats().bytes_in_use, pool);
      }
      cache->end_step(step);
    }
    const CacheStats stats = cache->stats();
    EXPECT_EQ(stats.in_flight, 0u);
    EXPECT_EQ(stats.bytes_in_flight, 0u);
    EXPECT_EQ(stats.fills, stats.evictions + stats.residents);
    EXPECT_TRUE(stats.hits > 0 || pool < 2048);
  }
}

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names;
  for (const PolicyInfo& info : policies()) names.push_back(info.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, CachePolicies, ::testing::ValuesIn(policy_names()),
                         [](const auto& info) { return ef::testing::test_name(info.param); });

TEST(ExpertCache, TrimsInThePolicysOrderWhateverIsOpen) {
  Harness cache({64}, 4, 256);
  cache.use(0, {0});
  const StepId step = cache->begin_step();
  cache.open(step, 0, {1});
  cache.fill();
  cache->release(step, {0, 1});
  cache.open(step, 0, {2});
  cache.fill();
  cache->trim(192, 0);  // fits
  EXPECT_TRUE(cache.resident(0, 0));
  cache->trim(100, 0);  // one of three: 2 is pinned, 0 and 1 are the older ones
  EXPECT_FALSE(cache.resident(0, 0));
  EXPECT_FALSE(cache.resident(0, 1));
  cache->trim(0, 0);
  EXPECT_TRUE(cache.resident(0, 2));
  cache->end_step(step);
}

TEST(ExpertCache, CountsWhatWasAskedForOutsideOfItsLock) {
  Harness cache({64}, 4, 128);
  cache.use(0, {0, 1});
  cache.use(0, {1});
  EXPECT_EQ(cache->counts().events({0, 0}), 1u);
  EXPECT_EQ(cache->counts().events({0, 1}), 2u);
  EXPECT_EQ(cache->counts().rows({0, 1}), 2u);
  EXPECT_EQ(cache->counts().events({0, 3}), 0u);
}

TEST(ExpertCache, EagerEventsLeaveNothingBehind) {
  Harness cache({64}, 4, 4 * 64);
  cache.use(0, {0});  // of a decoding step
  const StepId step = cache->begin_step();
  const Ids experts = {0, 1, 2};
  const std::vector<int32_t> tokens = {300, 200, 100};
  std::vector<ExpertCache::Grant> granted;
  std::vector<ExpertId> deferred;
  cache->open({step, 0, experts, tokens, true, 300, true}, granted, deferred);
  for (const auto& grant : granted)
    if (grant.fill) cache->complete({0, grant.expert});
  cache->release(step, {0, 1});
  EXPECT_FALSE(cache.resident(0, 1)) << "used, gone";
  EXPECT_TRUE(cache.resident(0, 2)) << "not used yet";
  cache->release(step, {0, 0});
  cache->end_step(step);
  EXPECT_TRUE(cache.resident(0, 0)) << "it was there before";
  EXPECT_EQ(cache->stats().eager_evictions, 1u);
}

Ids two_of_16(std::mt19937& random) {
  const ExpertId first = ExpertId(random() % 16);
  return {first, ExpertId((first + 1 + ExpertId(random() % 15)) % 16)};
}

// Two layers of different slots in turns, more experts than fit: every byte of the pool goes on being used.
TEST(ExpertCache, MixedSizesDoNotFragment) {
  Harness cache({128, 192}, 16, 10 * (128 + 192));
  std::mt19937 random(5);
  for (int step = 0; step < 400; ++step)
    for (LayerId layer = 0; layer < 2; ++layer) {
      cache.use(layer, two_of_16(random));
    }
  EXPECT_GE(cache->stats().bytes_in_use, 9 * (128 + 192)) << "of 3200";
}

// A copy that was taken back frees a slot; the next event of the other layer does not cut a piece out of it.
TEST(ExpertCache, CancelledCopiesLeaveNoGaps) {
  Harness cache({128, 192}, 16, 10 * (128 + 192));
  std::mt19937 random(5);
  for (int step = 0; step < 400; ++step)
    for (LayerId layer = 0; layer < 2; ++layer) {
      cache.use(layer, two_of_16(random));
      const ExpertKey ahead{1, ExpertId(random() % 16)};
      if (cache->reserve(ahead, layer)) cache->fail(ahead, nullptr);
    }
  for (ExpertId e = 0; e < 16; ++e) cache.use(1, {e});
  EXPECT_GE(cache->stats().bytes_in_use, 10 * (128 + 192) - 128) << "of 3200";
}

}  // namespace
}  // namespace ef
