// Regions of a backend's memory: offsets, ratios and lives by hand, then the same over every backend.
#include "expertflow/backend/memory_regions.h"

#include <gtest/gtest.h>

#include <thread>

#include "expertflow/base/errors.h"
#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

TEST(FreeExtents, TheFirstThatIsLongEnoughServesAtItsHead) {
  FreeExtents e(1000);
  EXPECT_EQ(e.take(100), 0u);
  EXPECT_EQ(e.take(200), 100u);
  EXPECT_EQ(e.take(300), 300u);
  EXPECT_EQ(e.free_bytes(), 400u);
  EXPECT_EQ(e.fragmentation(), 0.);
  e.give(100, 200);  // [100, 300) and [600, 1000)
  EXPECT_EQ(e.free_bytes(), 600u);
  EXPECT_EQ(e.largest(), 400u);
  EXPECT_DOUBLE_EQ(e.fragmentation(), 1. / 3);
  EXPECT_EQ(e.take(150), 100u);  // [250, 300) and [600, 1000)
  EXPECT_DOUBLE_EQ(e.fragmentation(), 1. / 9);
  EXPECT_EQ(e.take(51), 600u);  // the hole of 50 is too short
  EXPECT_EQ(e.take(350), std::nullopt);
  EXPECT_EQ(e.take(349), 651u);
  EXPECT_EQ(e.take(50), 250u);
  EXPECT_EQ(e.free_bytes(), 0u);
  EXPECT_EQ(e.fragmentation(), 0.);
  EXPECT_EQ(e.take(1), std::nullopt);
}

TEST(FreeExtents, NeighboursJoinOnBothSides) {
  FreeExtents e(1000);
  for (int i = 0; i < 5; ++i) e.take(200);
  e.give(200, 200);
  e.give(600, 200);
  EXPECT_EQ(e.count(), 2u);
  EXPECT_DOUBLE_EQ(e.fragmentation(), 0.5);
  e.give(400, 200);  // the one between them
  EXPECT_EQ(e.count(), 1u);
  EXPECT_EQ(e.largest(), 600u);
  e.give(800, 200);  // behind
  e.give(0, 200);    // before
  EXPECT_EQ(e.count(), 1u);
  EXPECT_EQ(e.take(1000), 0u);
}

TEST(FreeExtents, OfNothing) {
  FreeExtents e;
  EXPECT_EQ(e.take(1), std::nullopt);
  EXPECT_EQ(e.largest(), 0u);
  EXPECT_EQ(e.fragmentation(), 0.);
}

class Regions : public ::testing::TestWithParam<BackendMaker> {
 protected:
  Regions() : pool(1), backend(GetParam().make(pool)) {}
  std::string refusal(MemoryRegions& regions, uint64_t bytes, const MemoryUse& use) {
    try {
      regions.allocate(bytes, use);
    } catch (const DeviceError& e) {
      return e.what();
    }
    return "given";
  }
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
};

constexpr MemoryUse kScratch{Region::kDynamic, "scratch"}, kKv{Region::kDynamic, "KV cache", 3};

TEST_P(Regions, PiecesAreCutFromWhatIsReserved) {
  MemoryRegions regions(*backend);
  regions.reserve(Region::kDynamic, 1000);  // whole multiples of 256: 1024
  Buffer a = backend->allocate(100, kScratch), b = backend->allocate(300, kScratch), c = backend->allocate(256, kKv);
  EXPECT_EQ(b.data() - a.data(), 256);
  EXPECT_EQ(c.data() - a.data(), 768);
  RegionReport r = regions.report(Region::kDynamic);
  EXPECT_EQ(r.reserved, 1024u);
  EXPECT_EQ(r.used, 656u);
  EXPECT_EQ(r.free, 0u);
  EXPECT_EQ(r.fragmentation, 0.);
  EXPECT_EQ(r.pieces, 3u);

  b = Buffer();
  r = regions.report(Region::kDynamic);
  EXPECT_EQ(r.used, 356u);
  EXPECT_EQ(r.peak, 656u);
  EXPECT_EQ(r.free, 512u);

  Buffer d = backend->allocate(200, kScratch);  // the head of b's place
  EXPECT_EQ(d.data() - c.data(), 256 - 768);
  a = Buffer();  // free: [0, 256) and [512, 768)
  r = regions.report(Region::kDynamic);
  EXPECT_EQ(r.free, 512u);
  EXPECT_EQ(r.largest_free, 256u);
  EXPECT_DOUBLE_EQ(r.fragmentation, 0.5);
  EXPECT_EQ(
      refusal(regions, 300, kKv),
      fmt::format("{}: dynamic region: 300 bytes asked for KV cache of layer 3; 512 of 1024 are free, the largest "
                  "extent 256 (fragmentation 0.50)",
                  backend->name()));
  EXPECT_EQ(refusal(regions, UINT64_MAX, kScratch),
            fmt::format("{}: dynamic region: 18446744073709551615 bytes asked for scratch; 512 of 1024 are free, the "
                        "largest extent 256 (fragmentation 0.50)",
                        backend->name()));
  EXPECT_EQ(regions.report(Region::kDynamic).used, 456u);
}

TEST_P(Regions, WhatIsNotReservedIsCountedOnly) {
  MemoryRegions regions(*backend);
  regions.reserve(Region::kStatic, 512);
  Buffer a = backend->allocate(1 << 20, {Region::kElastic, "expert slots"});
  RegionReport r = regions.report(Region::kElastic);
  EXPECT_EQ(r.reserved, 0u);
  EXPECT_EQ(r.used, 1u << 20);
  EXPECT_EQ(r.free, 0u);
  EXPECT_EQ(regions.report(Region::kStatic).used, 0u);
  a = Buffer();
  EXPECT_EQ(regions.report(Region::kElastic).used, 0u);
  EXPECT_EQ(regions.report(Region::kElastic).peak, 1u << 20);
}

TEST_P(Regions, ARegionIsReservedAnewOnceItIsEmpty) {
  MemoryRegions regions(*backend);
  regions.reserve(Region::kElastic, 512);
  { const Buffer all = backend->allocate(512, {Region::kElastic, "expert slots"}); }
  regions.reserve(Region::kElastic, 4096);
  const Buffer more = backend->allocate(4096, {Region::kElastic, "expert slots"});
  EXPECT_EQ(regions.report(Region::kElastic).reserved, 4096u);
}

TEST_P(Regions, LivesAreInTheTimeThatWasSet) {
  MemoryRegions regions(*backend);
  regions.reserve(Region::kDynamic, 4096);
  Buffer whole = backend->allocate(64, kKv);  // from 0 on
  regions.set_time(3);
  Buffer ends = backend->allocate(512, kScratch), stays = backend->allocate(128, kScratch);
  regions.set_time(8);
  ends = Buffer();
  regions.set_time(10);
  const std::vector<MemoryPiece> p = regions.pieces();
  ASSERT_EQ(p.size(), 3u);
  EXPECT_EQ(p[0].bytes, 64u);  // held 10 steps
  EXPECT_EQ(p[0].use.part, "KV cache");
  EXPECT_EQ(p[0].use.layer, 3);
  EXPECT_EQ(p[0].from, 0u);
  EXPECT_EQ(p[0].until, std::nullopt);
  EXPECT_EQ(p[1].bytes, 128u);  // 7
  EXPECT_EQ(p[1].from, 3u);
  EXPECT_EQ(p[2].bytes, 512u);  // 5
  EXPECT_EQ(p[2].until, 8u);
}

TEST_P(Regions, TheRecordOfWhatEndedIsBounded) {
  MemoryRegions regions(*backend);
  regions.reserve(Region::kDynamic, 256);
  for (uint64_t t = 0; t < MemoryRegions::kMostEnded + 10; ++t) {
    regions.set_time(t);
    backend->allocate(1, kScratch);
  }
  const auto pieces = regions.pieces();
  ASSERT_EQ(pieces.size(), MemoryRegions::kMostEnded);
  uint64_t earliest = UINT64_MAX;
  for (const MemoryPiece& p : pieces) earliest = std::min(earliest, p.from);
  EXPECT_EQ(earliest, 10u);
}

TEST_P(Regions, BackendsAreOnTheirOwnAgainAfterwards) {
  {
    MemoryRegions regions(*backend);
    regions.reserve(Region::kDynamic, 256);
    EXPECT_THROW(backend->allocate(257), DeviceError);
  }
  EXPECT_EQ(backend->allocate(257).size(), 257u);
}

TEST_P(Regions, PiecesOfNoBytesAreTwo) {
  MemoryRegions regions(*backend);
  regions.reserve(Region::kDynamic, 512);
  const Buffer a = backend->allocate(0), b = backend->allocate(0);
  EXPECT_NE(a.data(), b.data());
}

TEST_P(Regions, SeveralThreads) {
  constexpr int kThreads = 4, kTimes = 200;
  MemoryRegions regions(*backend);
  regions.reserve(Region::kDynamic, kThreads * 3 * 1024);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTimes; ++i) {
        const Buffer a = backend->allocate(uint64_t(1 + 97 * t), kScratch), b = backend->allocate(512, kScratch);
      }
    });
  for (std::thread& t : threads) t.join();
  const RegionReport r = regions.report(Region::kDynamic);
  EXPECT_EQ(r.used, 0u);
  EXPECT_EQ(r.largest_free, r.reserved);
}

EF_FOR_EACH_BACKEND(Regions);

}  // namespace
}  // namespace ef::testing
