#include "expertflow/cache/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "expertflow/cache/victims.h"

namespace ef {
namespace {

TEST(PagePool, BestFitTakesTheSmallestHoleThatHolds) {
  PagePool pool(20);
  const Extent a = *pool.allocate(4), b = *pool.allocate(3), c = *pool.allocate(6), d = *pool.allocate(7);
  EXPECT_EQ(a, (Extent{0, 4}));
  EXPECT_EQ(b, (Extent{4, 3}));
  EXPECT_EQ(d, (Extent{13, 7}));
  EXPECT_FALSE(pool.allocate(1));
  pool.release(a);
  pool.release(c);
  EXPECT_EQ(*pool.allocate(4), a) << "the hole of 4, not the one of 6";
  EXPECT_EQ(*pool.allocate(5), (Extent{7, 5}));
  EXPECT_EQ(pool.free_pages(), 1u);
}

TEST(PagePool, NeighboursMerge) {
  PagePool pool(9);
  const Extent a = *pool.allocate(3), b = *pool.allocate(3), c = *pool.allocate(3);
  pool.release(a);
  pool.release(c);
  EXPECT_EQ(pool.largest_free(), 3u);
  EXPECT_EQ(pool.free_pages(), 6u);
  EXPECT_FALSE(pool.allocate(4));
  pool.release(b);
  EXPECT_EQ(pool.largest_free(), 9u);
  EXPECT_EQ(*pool.free_before(9), (Extent{0, 9}));
  EXPECT_EQ(*pool.free_after(0), (Extent{0, 9}));
  EXPECT_FALSE(pool.free_after(3));
}

TEST(PagePool, FromTheTop) {
  PagePool pool(10);
  EXPECT_EQ(*pool.allocate(4, true), (Extent{6, 4}));
  EXPECT_EQ(*pool.allocate(4, true), (Extent{2, 4}));
  EXPECT_EQ(*pool.allocate(2), (Extent{0, 2}));
}

TEST(PagePool, ExtentsNeverOverlapAndNothingIsLost) {
  PagePool pool(64);
  std::mt19937 random(5);
  std::vector<Extent> held;
  std::vector<int> owner(64, 0);
  for (int i = 0; i < 5000; ++i) {
    if (held.empty() || random() % 2) {
      const auto got = pool.allocate(1 + random() % 9, random() % 2);
      if (!got) continue;
      for (uint32_t p = got->first; p < got->end(); ++p) ASSERT_EQ(owner[p]++, 0);
      held.push_back(*got);
    } else {
      const size_t at = random() % held.size();
      for (uint32_t p = held[at].first; p < held[at].end(); ++p) --owner[p];
      pool.release(held[at]);
      held.erase(held.begin() + long(at));
    }
    uint32_t used = 0;
    for (const Extent& e : held) used += e.pages;
    ASSERT_EQ(pool.free_pages(), 64 - used);
  }
  for (const Extent& e : held) pool.release(e);
  EXPECT_EQ(pool.largest_free(), 64u);
}

// Pools laid out by hand: one victim per digit, '.' is free, '#' belongs to somebody pinned.
struct Layout {
  PagePool pool;
  std::vector<Victim> ordered;  // by digit: 0 goes first
  explicit Layout(const std::string& text) : pool(uint32_t(text.size())), ordered(10) {
    pool.allocate(uint32_t(text.size()));
    for (uint32_t i = 0; i < text.size(); ++i) {
      if (text[i] == '.') pool.release({i, 1});
      if (text[i] < '0' || text[i] > '9') continue;
      Extent& extent = ordered[size_t(text[i] - '0')].extent;
      if (extent.pages == 0) extent.first = i;
      ++extent.pages;
    }
    while (!ordered.empty() && ordered.back().extent.pages == 0) ordered.pop_back();
  }
  std::optional<std::vector<size_t>> choose(uint32_t pages, size_t limit = 10, std::vector<uint32_t> sizes = {},
                                            bool no_gap = false) const {
    return choose_victims(pool, ordered, limit, pages, sizes, no_gap);
  }
};
using Chosen = std::optional<std::vector<size_t>>;

TEST(Victims, NobodyLeavesWhileAHoleIsLargeEnough) {
  EXPECT_EQ(Layout("00..1").choose(2), Chosen(std::vector<size_t>{}));
}

TEST(Victims, EqualSlotsCostOneVictim) {
  EXPECT_EQ(Layout("11002233").choose(2), Chosen({{0}}));
  EXPECT_EQ(Layout("11##2200").choose(2), Chosen({{0}}));
}

TEST(Victims, FreeNeighboursAreUsedFirst) { EXPECT_EQ(Layout("11.0.22").choose(3), Chosen({{0}})); }

TEST(Victims, ScatteredSmallOnesStayWhenTheyDoNotHelp) {
  // 0 and 1 are isolated between pinned slots; 2 and 3 together make room for 4 pages.
  EXPECT_EQ(Layout("#0#1#2233#").choose(4), Chosen({{2, 3}}));
}

TEST(Victims, TheEarlierNeighbourGoes) {
  EXPECT_EQ(Layout("2211003344").choose(4), Chosen({{1, 0}}));
  EXPECT_EQ(Layout("3322001144").choose(4), Chosen({{0, 1}}));
}

TEST(Victims, ALargeNeighbourSparesASmallOne) {
  // 0, then 1 are marked without enough room; 2 alone is enough.
  EXPECT_EQ(Layout("0#1#22222").choose(5), Chosen({{2}}));
  EXPECT_EQ(Layout("0122222##").choose(5), Chosen({{2}}));
}

TEST(Victims, OneOfTheSameSizeGoesRatherThanTwoOthers) {
  // 0 and 2 side by side would do; 1 leaves no gap.
  EXPECT_EQ(Layout("00#111#22#33").choose(3), Chosen({{1}}));
  EXPECT_EQ(Layout("0022#111#33").choose(3), Chosen({{1}}));
}

TEST(Victims, UnlessTheyAreAllWorthMuchMore) {
  EXPECT_EQ(Layout("0011#22#333").choose(3), Chosen({{0, 1}}));
  EXPECT_EQ(Layout("00#11#22#333").choose(3), Chosen({{3}})) << "nobody else can make room";
}

TEST(Victims, FreePagesThatJustHoldOthersAreLeftToThem) {
  const std::vector<uint32_t> sizes = {2, 3};
  EXPECT_EQ(Layout("...#00#111").choose(2, 10, sizes), Chosen({{0}}));
  EXPECT_EQ(Layout("...#00#111").choose(3, 10, sizes), Chosen(std::vector<size_t>{}));
  EXPECT_EQ(Layout("....#000").choose(3, 10, sizes), Chosen({{0}})) << "two of two pages";
  EXPECT_EQ(Layout("...#00#111").choose(2, 10, {2, 4}), Chosen(std::vector<size_t>{})) << "nobody's";
  EXPECT_EQ(Layout(".....#00#111").choose(2, 10, sizes), Chosen(std::vector<size_t>{})) << "three are left";
  EXPECT_EQ(Layout("...#000").choose(2, 10, sizes), Chosen(std::vector<size_t>{})) << "nobody else can make room";
  EXPECT_EQ(Layout("..........#00").choose(2, 10, sizes), Chosen(std::vector<size_t>{})) << "room for many";
}

// Of two sizes in one pool; the victim of the size wanted is 1.
TEST(Victims, GapsAreClosedByOneOfAnotherSize) {
  EXPECT_EQ(Layout("00.#111#22#33").choose(3, 10, {2, 3}), Chosen({{0}})) << "two and the free page make three";
  EXPECT_EQ(Layout("000.#11#22#33").choose(2, 10, {2, 3}), Chosen({{0}})) << "three and the free page make two twice";
  EXPECT_EQ(Layout("00000....#111111#22#33").choose(6, 10, {5, 6}), Chosen({{0}}))
      << "of four free pages three are left";
  EXPECT_EQ(Layout("000000...#11111#22#33").choose(5, 10, {5, 6}), Chosen({{1}})) << "three free pages would be four";
  EXPECT_EQ(Layout("00..#111#22#33").choose(3, 10, {2, 3}), Chosen({{1}})) << "what is free just holds another";
  EXPECT_EQ(Layout("00#.111#22#33").choose(3, 10, {2, 3}), Chosen({{1}})) << "beside one of the same size";
  EXPECT_EQ(Layout("000#111#22.#33").choose(3, 10, {2, 3}), Chosen({{0}})) << "the second half is worth more";
}

TEST(Victims, WhoMayLeaveNoGapGoesWithout) {
  const std::vector<uint32_t> sizes = {2, 3};
  EXPECT_EQ(Layout("0011#22").choose(3, 10, sizes), Chosen({{0, 1}}));
  EXPECT_EQ(Layout("0011#22").choose(3, 10, sizes, true), std::nullopt);
  EXPECT_EQ(Layout("0011#22#333").choose(3, 10, sizes, true), Chosen({{3}})) << "wherever one of the same size is";
  EXPECT_EQ(Layout("0011#22").choose(4, 10, {2, 4}, true), Chosen({{0, 1}})) << "nothing is left over";
  EXPECT_EQ(Layout("000#11").choose(2, 1, sizes, true), std::nullopt);
  EXPECT_EQ(Layout("0000#11").choose(2, 1, {2, 4}, true), Chosen({{0}})) << "another of the kind fits beside it";
  EXPECT_EQ(Layout("...#000").choose(2, 10, sizes, true), std::nullopt) << "free pages that just hold others";
}

TEST(Victims, PinnedWallsAndLimits) {
  EXPECT_EQ(Layout("00#11#22").choose(3), std::nullopt);
  EXPECT_EQ(Layout("0011").choose(4), Chosen({{0, 1}}));
  EXPECT_EQ(Layout("0011").choose(4, 1), std::nullopt);
}

}  // namespace
}  // namespace ef
