// run_bench over a fixture: its counts against arithmetic by hand; bounds and spreads of made-up figures.
#include <gtest/gtest.h>

#include "expertflow/measure/bench.h"
#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

// Bytes of the qwen3_moe fixture, see work_test.cpp.
constexpr uint64_t kResident = 154880, kHead = 32768, kRow = 128, kExpert = 12288, kKvToken = 768;

EngineOptions f16_engine(const std::string& budget) {
  EngineOptions o = small_engine(budget);
  o.cache_type_k = o.cache_type_v = "f16";
  o.ubatch = 4;
  return o;
}

BenchResult run(const BenchTest& test, const BenchOptions& options = {2, true}, const std::string& budget = "100%") {
  const auto engine = engine_of("qwen3_moe", f16_engine(budget));
  return run_bench(*engine, test, TokenStream(256, 1), options);
}

TEST(RunBench, DecodingReadsTheWeightsOncePerToken) {
  const BenchResult r = run({0, 5, 0});
  ASSERT_EQ(r.samples.size(), 2u);
  for (const BenchSample& s : r.samples) {
    EXPECT_EQ(s.weight_bytes, 5 * (kResident + kHead + kRow + 3 * 4 * kExpert) + kKvToken * (1 + 2 + 3 + 4 + 5));
    EXPECT_EQ(s.hits + s.misses, 5u * 3 * 4);
    EXPECT_EQ(s.prompt_seconds + s.decode_seconds, s.seconds());
  }
  EXPECT_EQ(r.operations.half, 5.0 * (301056 + 32768));
  EXPECT_EQ(r.operations.f32, 1536.0 * (1 + 2 + 3 + 4 + 5));
}

// Depth shows in keys and values only.
TEST(RunBench, ContextIsReadToo) {
  const BenchResult r = run({0, 2, 10});
  EXPECT_EQ(r.samples[0].weight_bytes, 2 * (kResident + kHead + kRow + 3 * 4 * kExpert) + kKvToken * (11 + 12));
  EXPECT_EQ(r.test.name(), "tg2 @ d10");
}

// Six rows in chunks of four: two steps, logits from the last alone. Distinct experts are what the cache was asked for.
TEST(RunBench, PromptsReadTheirExpertsOncePerChunk) {
  const BenchResult r = run({6, 0, 0}, {1, false});
  ASSERT_EQ(r.samples.size(), 1u);
  const BenchSample& s = r.samples[0];
  EXPECT_GE(s.hits + s.misses, 2u * 3 * 4);
  EXPECT_EQ(s.weight_bytes, 2 * kResident + kHead + 6 * kRow + (s.hits + s.misses) * kExpert + kKvToken * (4 + 6));
  EXPECT_EQ(r.operations.half, 6 * 301056.0 + 32768);
  EXPECT_EQ(r.test.name(), "pp6");
}

// Weights are read once a step, whatever number of sequences it has; keys and values for each of them.
TEST(RunBench, SequencesShareTheWeights) {
  EngineOptions o = f16_engine("100%");
  o.parallel = 4;
  const auto engine = engine_of("qwen3_moe", o);
  const BenchResult r = run_bench(*engine, {0, 3, 2, 4}, TokenStream(256, 1), {2, true});
  for (const BenchSample& s : r.samples) {
    EXPECT_LT(s.hits + s.misses, 4u * 3 * 3 * 4) << "no expert was chosen by two sequences";
    EXPECT_EQ(s.weight_bytes,
              3 * (kResident + kHead + 4 * kRow) + (s.hits + s.misses) * kExpert + 4 * kKvToken * (3 + 4 + 5));
  }
  EXPECT_EQ(r.operations.half, 12.0 * (301056 + 32768));
  EXPECT_EQ(r.operations.f32, 4 * 1536.0 * (3 + 4 + 5));
  EXPECT_EQ(r.test.name(), "tg3 @ d2 x 4");
  EXPECT_DOUBLE_EQ(r.rates()[0], 12 / r.samples[0].seconds());
  EXPECT_EQ(engine->kv().open(1), 0) << "a sequence was left open";
}

TEST(RunBench, PromptsOfSequencesAreReadOneAfterTheOther) {
  EngineOptions o = f16_engine("100%");
  o.parallel = 2;
  const auto engine = engine_of("qwen3_moe", o);
  const BenchResult r = run_bench(*engine, {6, 1, 0, 2}, TokenStream(256, 1), {1, false});
  const BenchSample& s = r.samples[0];
  EXPECT_EQ(s.weight_bytes, 2 * (2 * kResident + kHead + kKvToken * (4 + 6)) + kResident + kHead + 14 * kRow +
                                (s.hits + s.misses) * kExpert + 2 * kKvToken * 7);
  EXPECT_EQ(r.operations.half, 14 * 301056.0 + 4 * 32768);
}

TEST(RunBench, ProfilesNeedADeviceThatTimesKernels) {
  const auto engine = engine_of("qwen3_moe", f16_engine("100%"));
  try {
    run_bench(*engine, {0, 1, 0}, TokenStream(256, 1), {1, false, true});
    ADD_FAILURE() << "a profile of a CPU";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("--device cuda"), std::string::npos) << error.what();
  }
}

TEST(BenchProfiles, KernelsOfOneStep) {
  BenchProfile p;
  p.work.entries = {{"a", false, 8, 4.0}, {"copy to the host", true, 2, 100.0}, {"b", false, 2, 2.0}};
  p.steps = 2;
  EXPECT_EQ(p.kernel_seconds(), 3);
  EXPECT_EQ(p.kernels(), 10u);
}

// With room for everything and a warm start nothing need be missed; with less, the policy never beats the bound.
TEST(RunBench, ClairvoyantBound) {
  EXPECT_EQ(run({8, 8, 0}).clairvoyant_bytes, 0);
  const BenchResult r = run({0, 40, 0}, {2, true}, "30%");
  EXPECT_GT(r.clairvoyant_bytes, 0);
  EXPECT_LE(r.clairvoyant_bytes, r.mean(&BenchSample::bytes_read));
}

TEST(RunBench, RefusesNothingToDo) {
  const auto engine = engine_of("qwen3_moe", f16_engine("100%"));
  EXPECT_THROW(run_bench(*engine, {0, 0, 5}, TokenStream(256, 1), {}), ConfigError);
  EXPECT_THROW(run_bench(*engine, {1, 0, 0}, TokenStream(256, 1), {0, false}), ConfigError);
}

TEST(BenchNames, AsLlamaBenchWritesThem) {
  EXPECT_EQ((BenchTest{512, 0, 0}.name()), "pp512");
  EXPECT_EQ((BenchTest{0, 128, 0}.name()), "tg128");
  EXPECT_EQ((BenchTest{512, 128, 1024}.name()), "pp512+tg128 @ d1024");
}

TEST(BenchSpread, ByHand) {
  const Spread s = spread_of({4, 1, 3, 2, 10});
  EXPECT_EQ(s.mean, 4);
  EXPECT_DOUBLE_EQ(s.deviation, std::sqrt((0 + 9 + 1 + 4 + 36) / 4.0));
  EXPECT_EQ(s.median, 3);
  EXPECT_EQ(s.least, 1);
  EXPECT_EQ(s.most, 10);
  EXPECT_EQ(spread_of({1, 2, 3, 4}).median, 2.5);
  EXPECT_EQ(spread_of({7}).deviation, 0);
}

TEST(BenchBounds, TheLargestHolds) {
  BenchResult r;
  r.test = {0, 10, 0};
  r.samples = {{0, 1.0, 0, 0, 100, 0, 0, 1000}, {0, 3.0, 0, 0, 300, 0, 0, 3000}};
  r.operations = {400, 200, 100};
  r.clairvoyant_bytes = 50;
  Peaks peaks;
  peaks.memory.bytes_per_second = 1000;
  Bounds b = bounds_of(r, peaks);
  EXPECT_EQ(b.memory, 2);  // (1000 + 3000) / 2 bytes
  EXPECT_EQ(b.compute, 0);
  EXPECT_STREQ(b.by(), "memory");
  peaks.compute = {100, 100, 50};
  b = bounds_of(r, peaks);
  EXPECT_EQ(b.compute, 4 + 2 + 2);
  EXPECT_STREQ(b.by(), "compute");
  peaks.disk.bytes_per_second = 10;
  b = bounds_of(r, peaks);
  EXPECT_EQ(b.disk, 20);
  EXPECT_STREQ(b.by(), "disk");
  EXPECT_EQ(b.clairvoyant_seconds(), 8);  // 50 / 10 is less than computing takes
  EXPECT_STREQ(bounds_of(r, {}).by(), "none");
  EXPECT_EQ(seconds_at_peak({1, 1, 0}, {10, 0, 10}), 0) << "an unknown peak gives no bound";
}

TEST(TokenStreams, AreTheSameEveryTime) {
  const TokenStream random(100, 7), again(100, 7), other(100, 8);
  const auto ids = random.slice(5, 200);
  EXPECT_EQ(ids, again.slice(5, 200));
  EXPECT_NE(ids, other.slice(5, 200));
  for (const TokenId id : ids) EXPECT_TRUE(id >= 0 && id < 100);
  EXPECT_EQ(TokenStream({3, 1, 2}).slice(2, 4), (std::vector<TokenId>{2, 3, 1, 2}));
}

}  // namespace
}  // namespace ef::testing
