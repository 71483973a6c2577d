// What is kept of prompts, found again, and given back. Expected counts by hand: blocks of four tokens.
#include "expertflow/sched/prefix_cache.h"

#include <gtest/gtest.h>

#include "tests/sched/fake_runner.h"

namespace ef::testing {
namespace {

std::vector<TokenId> count_from(TokenId first, size_t length) {
  std::vector<TokenId> out(length);
  std::iota(out.begin(), out.end(), first);
  return out;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  void use(const std::vector<int>& windows, int64_t tokens = 64, int sequences = 2) {
    runner = std::make_unique<FakeRunner>(kv_of(tokens, sequences), limits_of(64, 4, tokens), windows);
    cache = std::make_unique<PrefixCache>(runner->kv());
  }
  // A sequence that computes the tokens, keeps what it can, and ends. Returns tokens that it found.
  int64_t compute(const std::vector<TokenId>& tokens) {
    KvCache& kv = runner->kv();
    const SequenceId s = kv.open(64);
    PrefixCache::Cursor cursor;
    const int64_t found = cache->attach(s, tokens, cursor);
    const int64_t rest = int64_t(tokens.size()) - found;
    for (int g = 0; g < kv.groups(); ++g) EXPECT_TRUE(cache->make_room(g, kv.missing_blocks(g, s, rest)));
    kv.reserve(s, rest);
    kv.advance(s, rest);
    cache->record(s, tokens, cursor);
    kv.close(s);
    return found;
  }
  std::unique_ptr<FakeRunner> runner;
  std::unique_ptr<PrefixCache> cache;
};

TEST_F(PrefixCacheTest, FullBlocksAreFoundShortOfTheLastToken) {
  use({0});
  EXPECT_EQ(compute(count_from(0, 10)), 0);  // keeps [0, 8)
  EXPECT_EQ(cache->match(count_from(0, 10)), 8);
  EXPECT_EQ(cache->match(count_from(0, 9)), 8);
  EXPECT_EQ(cache->match(count_from(0, 8)), 4);  // the last token has to be computed
  EXPECT_EQ(cache->match(count_from(0, 5)), 4);
  EXPECT_EQ(cache->match(count_from(0, 4)), 0);
  EXPECT_EQ(cache->match(count_from(1, 10)), 0);
  auto other = count_from(0, 10);
  other[6] = 50;
  EXPECT_EQ(cache->match(other), 4);
  EXPECT_EQ(cache->stats().blocks, 2u);
}

TEST_F(PrefixCacheTest, WhatIsForgottenIsNotFoundAndWhatOthersKeepIs) {
  use({0});
  auto branch = count_from(0, 13);
  branch[9] = 50;
  compute(branch);
  KvCache& kv = runner->kv();
  const int64_t free = kv.free_blocks(0);
  const auto tokens = count_from(0, 13);  // two blocks in common, one of its own
  PrefixCache::Cursor cursor;
  const SequenceId s = kv.open(64);
  EXPECT_EQ(cache->attach(s, tokens, cursor), 8);
  kv.reserve(s, 5);
  kv.advance(s, 5);
  cache->record(s, tokens, cursor);
  EXPECT_EQ(cache->match(tokens), 12);
  cache->forget(cursor);
  kv.close(s);
  EXPECT_EQ(cache->match(tokens), 8);
  EXPECT_EQ(cache->match(branch), 12);
  EXPECT_EQ(kv.free_blocks(0), free);
}

TEST_F(PrefixCacheTest, TheSameBlockAfterAnotherBeginningIsAnother) {
  use({0});
  auto first = count_from(0, 4), second = count_from(20, 4);
  const auto same = count_from(40, 5);
  first.insert(first.end(), same.begin(), same.end());
  second.insert(second.end(), same.begin(), same.end());
  compute(first);
  EXPECT_EQ(cache->match(second), 0);
  EXPECT_EQ(cache->match(first), 8);
}

TEST_F(PrefixCacheTest, OldestUseLeavesFirstAndEndsBeforeBeginnings) {
  use({0}, 32, 1);              // eight blocks
  compute(count_from(0, 13));   // three blocks kept
  compute(count_from(30, 13));  // three more
  EXPECT_EQ(runner->kv().free_blocks(0), 2);
  EXPECT_EQ(cache->match(count_from(0, 13)), 12);
  compute(count_from(0, 13));  // used again: now the other is older
  ASSERT_TRUE(cache->make_room(0, 4));
  EXPECT_EQ(cache->match(count_from(0, 13)), 12);
  EXPECT_EQ(cache->match(count_from(30, 13)), 4);
  EXPECT_FALSE(cache->make_room(0, 9));  // more than there is
  EXPECT_EQ(runner->kv().free_blocks(0), 8);
  EXPECT_EQ(cache->stats().blocks, 0u);
}

TEST_F(PrefixCacheTest, WhatASequenceHoldsStays) {
  use({0}, 32, 2);
  compute(count_from(0, 13));
  const SequenceId s = runner->kv().open(32);
  PrefixCache::Cursor cursor;
  EXPECT_EQ(cache->attach(s, count_from(0, 13), cursor), 12);
  EXPECT_EQ(runner->kv().length(s), 12);
  EXPECT_EQ(cache->evictable(0), 0);
  EXPECT_FALSE(cache->make_room(0, 9));
  EXPECT_EQ(cache->match(count_from(0, 13)), 12);
  runner->kv().close(s);
  EXPECT_EQ(cache->evictable(0), 3);
}

// Window of 6 in blocks of 4: what follows 12 tokens sees positions 7 to 11, blocks 1 and 2.
TEST_F(PrefixCacheTest, WindowsMustReachBackFarEnough) {
  use({0, 6}, 64, 2);
  compute(count_from(0, 13));
  EXPECT_EQ(cache->match(count_from(0, 13)), 12);
  // After 13 tokens the window's first block had gone, so a shorter beginning cannot be continued.
  EXPECT_EQ(cache->match(count_from(0, 8)), 0);
  const SequenceId s = runner->kv().open(64);
  PrefixCache::Cursor cursor;
  ASSERT_EQ(cache->attach(s, count_from(0, 16), cursor), 12);
  EXPECT_EQ(runner->kv().block(1, s, 0), -1);
  EXPECT_GE(runner->kv().block(1, s, 1), 0);
  EXPECT_GE(runner->kv().block(0, s, 0), 0);
  runner->kv().close(s);
  ASSERT_TRUE(cache->make_room(1, runner->kv().blocks(1)));
  EXPECT_EQ(cache->match(count_from(0, 13)), 0);  // the windows' blocks left; the full ones are still kept
  EXPECT_EQ(cache->stats().blocks, 3u);
}

TEST_F(PrefixCacheTest, NodesThatKeepNothingGo) {
  use({6}, 64, 2);  // windows alone
  compute(count_from(0, 30));
  ASSERT_TRUE(cache->make_room(0, runner->kv().blocks(0)));
  EXPECT_EQ(cache->stats().blocks, 0u);
  EXPECT_EQ(compute(count_from(0, 30)), 0);
  EXPECT_GT(cache->match(count_from(0, 30)), 0);
}

TEST_F(PrefixCacheTest, EveryBlockComesBackAtTheEnd) {
  use({0, 6}, 64, 2);
  const int64_t full = runner->kv().free_blocks(0), window = runner->kv().free_blocks(1);
  compute(count_from(0, 30));
  compute(count_from(0, 32));
  cache.reset();
  EXPECT_EQ(runner->kv().free_blocks(0), full);
  EXPECT_EQ(runner->kv().free_blocks(1), window);
}

}  // namespace
}  // namespace ef::testing
