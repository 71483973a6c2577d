// The KV cache's books: groups by reach, blocks taken and given back, sizes. Expected numbers by hand arithmetic.
#include "expertflow/model/kv_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"

namespace ef {
namespace {

Config config_with(const std::vector<int>& windows) {
  Config c;
  c.kv_heads = 2, c.heads = 4, c.head_dim = 8;
  for (const int window : windows) c.layers.push_back({true, window});
  return c;
}

Config latent_config() {
  Config c = config_with({0, 0});
  c.kv_heads = 1;
  c.latent = LatentConfig{0, 12, 6, 4, 10};  // kv_lora 12, rope 4: a row of 16
  return c;
}

KvOptions options(int64_t max_tokens, int sequences = 1, int block_tokens = 4, int step = 4) {
  KvOptions o;
  o.type = KvType::kF32;
  o.max_tokens = max_tokens, o.max_sequences = sequences, o.block_tokens = block_tokens, o.max_step_tokens = step;
  return o;
}

class KvCacheTest : public ::testing::Test {
 protected:
  ThreadPool pool{1};
  std::unique_ptr<Backend> backend = make_cpu_backend(pool, Isa::kReference);

  static std::vector<int32_t> row(const KvCache& kv, int group, SequenceId sequence) {
    const auto table = kv.block_table(group);
    const auto begin = table.begin() + long(sequence) * kv.max_blocks(group);
    return {begin, begin + kv.max_blocks(group)};
  }
  static std::set<int32_t> taken(const KvCache& kv, int group, SequenceId sequence) {
    std::set<int32_t> out;
    for (const int32_t block : row(kv, group, sequence))
      if (block >= 0) {
        EXPECT_TRUE(out.insert(block).second) << "block " << block << " twice";
      }
    return out;
  }
};

// The message of the RequestError that f throws.
template <class F>
std::string request_error(F f) {
  try {
    f();
  } catch (const RequestError& e) {
    return e.what();
  }
  return "";
}

TEST_F(KvCacheTest, LayersOfOneReachShareAGroup) {
  const KvCache kv(config_with({0, 16, 0, 16, 8}), *backend, options(64));
  EXPECT_EQ(kv.groups(), 3);
  std::vector<int> groups;
  for (LayerId l = 0; l < 5; ++l) groups.push_back(kv.group_of(l));
  EXPECT_EQ(groups, (std::vector{0, 1, 0, 1, 2}));
}

TEST_F(KvCacheTest, BytesAreKnownBefore) {
  // 10 tokens in blocks of 4: 3 blocks, one more for a second sequence's partly used one; 4 tokens x 2 heads x (8 + 8).
  const uint64_t floats = 4 * 4 * 2 * (8 + 8);
  for (const auto& [type, width] : {std::pair{KvType::kF32, 4}, {KvType::kF16, 2}, {KvType::kBF16, 2}}) {
    KvOptions o = options(10, 2);
    o.type = type;
    const Config c = config_with({0, 0, 0});
    EXPECT_EQ(KvCache::bytes_for(c, o), 3 * floats * uint64_t(width));
    EXPECT_EQ(KvCache(c, *backend, o).bytes(), KvCache::bytes_for(c, o));
  }
  for (const auto& windows : {std::vector{5}, {0, 5}, {7, 0, 3, 0}}) {
    const Config c = config_with(windows);
    EXPECT_EQ(KvCache(c, *backend, options(100, 3)).bytes(), KvCache::bytes_for(c, options(100, 3)));
  }
}

TEST_F(KvCacheTest, LatentCachesOneCompressedRowAToken) {
  const KvCache kv(latent_config(), *backend, options(10));
  // 3 blocks of 4 tokens, 16 floats a token, no values beside them, two layers.
  EXPECT_EQ(kv.bytes(), 2u * 3 * 4 * 16 * 4);
  EXPECT_EQ(kv.bytes(), KvCache::bytes_for(latent_config(), options(10)));
  const KvView view = kv.view(1);
  EXPECT_EQ(view.v, nullptr);
  EXPECT_EQ(view.k_dim, 16);
  EXPECT_EQ(view.v_dim, 12);
  EXPECT_EQ(view.kv_heads, 1);
}

TEST_F(KvCacheTest, WindowMemoryDoesNotGrowWithTheContext) {
  const Config window = config_with({16}), full = config_with({0});
  EXPECT_EQ(KvCache::bytes_for(window, options(4096)), KvCache::bytes_for(window, options(1 << 20)));
  // Window and chunk: (16 + 4) / 4 blocks, and a partly used one at either end.
  EXPECT_EQ(KvCache::bytes_for(window, options(4096)), 7u * 4 * 2 * 16 * 4);
  EXPECT_EQ(KvCache::bytes_for(full, options(4096)), 1024u * 4 * 2 * 16 * 4);
  // Never more than full attention would take.
  EXPECT_EQ(KvCache::bytes_for(window, options(8)), KvCache::bytes_for(full, options(8)));
}

TEST_F(KvCacheTest, ReserveTakesWholeBlocksOnce) {
  KvCache kv(config_with({0}), *backend, options(16));
  const SequenceId s = kv.open(16);
  EXPECT_EQ(kv.free_blocks(0), 4);
  kv.reserve(s, 1);
  EXPECT_EQ(kv.free_blocks(0), 3);
  kv.reserve(s, 4);  // the step before did not happen: the same room
  EXPECT_EQ(kv.free_blocks(0), 3);
  EXPECT_EQ(kv.length(s), 0);
  kv.advance(s, 4);
  EXPECT_EQ(kv.length(s), 4);
  kv.reserve(s, 1);
  EXPECT_EQ(kv.free_blocks(0), 2);
  EXPECT_EQ(taken(kv, 0, s).size(), 2u);
  const auto blocks = row(kv, 0, s);
  EXPECT_GE(blocks[0], 0);
  EXPECT_GE(blocks[1], 0);
  EXPECT_EQ(blocks[2], -1);
}

TEST_F(KvCacheTest, SequencesNeverShareABlock) {
  KvCache kv(config_with({0, 6}), *backend, options(24, 3));
  std::vector<SequenceId> sequences;
  for (int i = 0; i < 3; ++i) sequences.push_back(kv.open(8));
  for (int step = 0; step < 8; ++step)
    for (const SequenceId s : sequences) {
      kv.reserve(s, 1);
      kv.advance(s, 1);
      for (int g = 0; g < kv.groups(); ++g) {
        std::set<int32_t> all;
        size_t sum = 0;
        for (const SequenceId other : sequences) {
          const auto blocks = taken(kv, g, other);
          sum += blocks.size();
          all.insert(blocks.begin(), blocks.end());
        }
        EXPECT_EQ(all.size(), sum);
      }
    }
}

TEST_F(KvCacheTest, ExhaustionNamesTheCountsAndTakesNothing) {
  KvCache kv(config_with({0, 6}), *backend, options(16, 2, 4, 16));
  const SequenceId a = kv.open(16), b = kv.open(16);
  kv.reserve(a, 16);
  // 5 blocks (4 and one for the second sequence's end), 4 taken.
  ASSERT_EQ(kv.free_blocks(0), 1);
  const int64_t window_free = kv.free_blocks(1);
  const std::string message = request_error([&] { kv.reserve(b, 8); });
  EXPECT_NE(message.find("2 blocks of 4 tokens asked, 1 free of 5"), std::string::npos) << message;
  EXPECT_EQ(kv.free_blocks(0), 1);
  EXPECT_EQ(kv.free_blocks(1), window_free);
  EXPECT_TRUE(taken(kv, 0, b).empty());
  EXPECT_TRUE(taken(kv, 1, b).empty());
  kv.reserve(b, 4);
  EXPECT_EQ(taken(kv, 0, b).size(), 1u);
}

TEST_F(KvCacheTest, ASecondGroupsExhaustionTakesNothingFromTheFirst) {
  // The first group is the window's: 2 sequences x ((4 + 4) / 4 + 2) blocks; the second, full attention, runs out
  // first.
  KvCache kv(config_with({4, 0}), *backend, options(40, 2));
  const SequenceId a = kv.open(40), b = kv.open(40);
  for (int i = 0; i < 10; ++i) kv.reserve(a, 4), kv.advance(a, 4);
  kv.reserve(b, 4);
  kv.advance(b, 4);
  ASSERT_EQ(kv.free_blocks(1), 0);
  const int64_t window_free = kv.free_blocks(0);
  ASSERT_GT(window_free, 0);
  const auto before = taken(kv, 0, b);
  EXPECT_NE(request_error([&] { kv.reserve(b, 4); }), "");
  EXPECT_EQ(kv.free_blocks(0), window_free);
  EXPECT_EQ(taken(kv, 0, b), before);
}

TEST_F(KvCacheTest, OneSequenceCannotPassTheContext) {
  KvCache kv(config_with({0}), *backend, options(16, 2, 4, 16));
  const SequenceId s = kv.open(16);
  kv.reserve(s, 14);
  kv.advance(s, 14);
  const std::string message = request_error([&] { kv.reserve(s, 3); });
  EXPECT_NE(message.find("14 tokens held, 3 more asked, room for 16"), std::string::npos) << message;
  kv.reserve(s, 2);
}

TEST_F(KvCacheTest, AStepLongerThanPlannedIsRefusedWhereWindowsCount) {
  KvCache kv(config_with({0, 8}), *backend, options(64, 1, 4, 4));
  const SequenceId s = kv.open(64);
  const std::string message = request_error([&] { kv.reserve(s, 5); });
  EXPECT_NE(message.find("5"), std::string::npos) << message;
  EXPECT_NE(message.find("4"), std::string::npos) << message;
}

// Which blocks a window group may hold: those with a position that the next row still sees (or the first row of a
// sequence that begins with this one's full blocks), or that was reserved.
TEST_F(KvCacheTest, WindowKeepsExactlyWhatTheNextRowSees) {
  for (const int window : {1, 3, 4, 5, 9}) {
    KvCache kv(config_with({window, 0}), *backend, options(120));
    const SequenceId s = kv.open(120);
    std::mt19937 random(window);
    while (kv.length(s) < 120) {
      const int64_t chunk = std::min<int64_t>(1 + int64_t(random() % 4), 120 - kv.length(s));
      kv.reserve(s, chunk);
      kv.advance(s, chunk);
      const int64_t length = kv.length(s);
      const auto blocks = row(kv, 0, s);
      for (int64_t b = 0; b < int64_t(blocks.size()); ++b) {
        bool seen = false;  // by the row at position `length`
        for (int64_t p = 4 * b; p < 4 * b + 4 && p < length; ++p) seen |= p > length / 4 * 4 - window;
        // The block that the next row itself goes to may stay, though nothing in it is seen.
        const bool next = length % 4 != 0 && b == length / 4;
        EXPECT_EQ(blocks[size_t(b)] >= 0, seen || next)
            << "window " << window << " length " << length << " block " << b;
      }
      EXPECT_EQ(taken(kv, 1, s).size(), size_t((length + 3) / 4));
    }
  }
}

// The planned pool is enough for any chunking, whatever the block size.
TEST_F(KvCacheTest, WindowPoolSufficesForEveryChunking) {
  for (const int block : {1, 3, 4, 32})
    for (const int window : {1, 2, 7, 33})
      for (const int step : {1, 5, 64}) {
        KvCache kv(config_with({window, 0}), *backend, options(900, 3, block, step));
        std::mt19937 random(unsigned(block * 1000 + window * 10 + step));
        std::vector<SequenceId> sequences;
        for (int i = 0; i < 3; ++i) sequences.push_back(kv.open(300));
        for (int round = 0; round < 200; ++round) {
          const SequenceId s = sequences[random() % 3];
          const int64_t chunk = std::min<int64_t>(1 + int64_t(random() % unsigned(step)), 300 - kv.length(s));
          if (chunk == 0) continue;
          ASSERT_NO_THROW(kv.reserve(s, chunk)) << block << " " << window << " " << step;
          kv.advance(s, chunk);
        }
      }
}

TEST_F(KvCacheTest, SharedBlocksStayUntilTheirLastHolderIsGone) {
  KvCache kv(config_with({0, 6}), *backend, options(40, 3, 4, 16));
  const int64_t full = kv.free_blocks(0), window = kv.free_blocks(1);
  const SequenceId a = kv.open(40);
  kv.reserve(a, 10);
  kv.advance(a, 10);
  // Positions 0 to 7 are full blocks; the window of a row at 8 begins at 3.
  std::vector<std::vector<int32_t>> blocks{{kv.block(0, a, 0), kv.block(0, a, 1)},
                                           {kv.block(1, a, 0), kv.block(1, a, 1)}};
  for (const auto& group : blocks)
    for (const int32_t block : group) ASSERT_GE(block, 0);
  const SequenceId b = kv.open(40);
  kv.adopt(b, blocks);
  EXPECT_EQ(kv.length(b), 8);
  EXPECT_EQ(kv.block(0, b, 1), blocks[0][1]);
  EXPECT_EQ(kv.references(0, blocks[0][1]), 2);
  EXPECT_EQ(kv.missing_blocks(0, b, 5), 2);
  kv.reserve(b, 5);
  EXPECT_NE(kv.block(0, b, 2), kv.block(0, a, 2));  // what comes after is its own
  kv.retain(0, blocks[0][0]);
  kv.close(a);
  EXPECT_EQ(kv.references(0, blocks[0][0]), 2);
  EXPECT_EQ(kv.references(0, blocks[0][1]), 1);
  kv.advance(b, 5);  // 13 tokens: the window begins at 7
  EXPECT_EQ(kv.block(1, b, 0), -1);
  kv.close(b);
  EXPECT_EQ(kv.free_blocks(0), full - 1);
  EXPECT_EQ(kv.free_blocks(1), window);
  kv.release(0, blocks[0][0]);
  EXPECT_EQ(kv.free_blocks(0), full);
}

// max_tokens may be split over the sequences in any way.
TEST_F(KvCacheTest, AllSequencesTogetherHoldTheContext) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    KvCache kv(config_with({0}), *backend, options(97, 5, 8, 97));
    int64_t left = 97;
    for (int i = 0; i < 5; ++i) {
      const SequenceId s = kv.open(97);
      const int64_t tokens = i == 4 ? left : int64_t(random() % uint64_t(left + 1));
      ASSERT_NO_THROW(kv.reserve(s, tokens));
      kv.advance(s, tokens);
      left -= tokens;
    }
  }
}

TEST_F(KvCacheTest, CloseGivesEverythingBack) {
  KvCache kv(config_with({0, 6}), *backend, options(32, 2));
  const std::vector<int64_t> before = {kv.free_blocks(0), kv.free_blocks(1)};
  const SequenceId other = kv.open(32);
  kv.reserve(other, 3);
  kv.advance(other, 3);
  const auto others = taken(kv, 0, other);
  for (int round = 0; round < 5; ++round) {
    const SequenceId s = kv.open(10 + round);
    EXPECT_EQ(kv.length(s), 0);
    EXPECT_EQ(kv.rope_length(s), 10 + round);
    for (int i = 0; i < 7; ++i) kv.reserve(s, 4), kv.advance(s, 4);
    kv.reserve(s, 2);  // a step that failed: its room goes back too
    kv.close(s);
    EXPECT_TRUE(taken(kv, 0, s).empty());
    EXPECT_TRUE(taken(kv, 1, s).empty());
  }
  EXPECT_EQ(taken(kv, 0, other), others);
  kv.close(other);
  EXPECT_EQ(kv.free_blocks(0), before[0]);
  EXPECT_EQ(kv.free_blocks(1), before[1]);
}

TEST_F(KvCacheTest, UnreserveGivesBackOnlyWhatIsNotHeld) {
  KvCache kv(config_with({0, 6}), *backend, options(32, 2));
  const SequenceId s = kv.open(32);
  kv.reserve(s, 3);
  kv.advance(s, 3);
  const auto held = taken(kv, 0, s);
  const std::vector<int64_t> before = {kv.free_blocks(0), kv.free_blocks(1)};
  kv.reserve(s, 4);
  ASSERT_LT(kv.free_blocks(0), before[0]);
  kv.unreserve(s);
  EXPECT_EQ(taken(kv, 0, s), held);
  EXPECT_EQ(kv.free_blocks(0), before[0]);
  EXPECT_EQ(kv.free_blocks(1), before[1]);
  kv.reserve(s, 4);
  kv.advance(s, 4);
  EXPECT_EQ(kv.length(s), 7);
}

TEST_F(KvCacheTest, NoMoreSequencesThanPlanned) {
  KvCache kv(config_with({0}), *backend, options(16, 2));
  const SequenceId a = kv.open(16);
  kv.open(16);
  EXPECT_NE(request_error([&] { kv.open(16); }).find("2 sequences"), std::string::npos);
  kv.close(a);
  EXPECT_EQ(kv.open(16), a);
}

TEST_F(KvCacheTest, OptionsMustBePositive) {
  const Config c = config_with({0});
  EXPECT_THROW(KvCache(c, *backend, options(0)), ConfigError);
  EXPECT_THROW(KvCache(c, *backend, options(16, 0)), ConfigError);
  EXPECT_THROW(KvCache(c, *backend, options(16, 1, 0)), ConfigError);
  EXPECT_THROW(KvCache(c, *backend, options(16, 1, 4, 0)), ConfigError);
}

}  // namespace
}  // namespace ef
