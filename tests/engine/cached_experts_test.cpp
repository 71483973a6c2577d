// Experts in tiers give bit for bit what AllResident gives: at every budget, in any order of arrival, whatever was
// evicted.
#include "expertflow/engine/cached_experts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "expertflow/engine/memory_budget.h"
#include "tests/engine/tiny_experts.h"
#include "tests/support/seq_points.h"
#include "tests/support/test_name.h"

namespace ef {
namespace {

using testing::RoutedRows;
using testing::SeqPoints;
using testing::TinyExperts;
using testing::TinyShape;

// A model, the oracle, and whatever tier a test builds.
class Bench {
 public:
  explicit Bench(const TinyShape& shape = {}, uint64_t seed = 1)
      : model(shape, seed),
        pool(2),
        backend(make_cpu_backend(pool, Isa::kReference)),
        stream(backend->make_stream()),
        oracle(make_all_resident(model.config(), model.store(), *backend)),
        geometry(geometry_of(model.store(), model.layers())),
        random(uint32_t(seed)) {}

  std::unique_ptr<ExpertTier> tier(uint64_t budget, ExpertTierOptions options = {}) {
    options.budget_bytes = budget;
    return std::make_unique<ExpertTier>(model.config(), model.store(), *backend, clock, options);
  }
  RoutedRows rows(int64_t n) { return RoutedRows(model.shape(), n, random); }
  std::vector<float> run(Experts& experts, LayerId layer, const RoutedRows& in) {
    std::vector<float> out(size_t(in.rows) * size_t(model.shape().hidden), -1.f);
    experts.run(layer, in.x.data(), in.view(), out.data(), *stream);
    return out;
  }
  // Runs all sparse layers of a step through both; the number of layers whose outputs are not the same bits.
  int step(Experts& experts, int64_t n) {
    int different = 0;
    experts.begin_step();
    for (LayerId layer = 1; layer < model.layers(); ++layer) {
      const RoutedRows in = rows(n);
      const std::vector<float> got = run(experts, layer, in), want = run(*oracle, layer, in);
      different += std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) != 0;
    }
    experts.end_step();
    return different;
  }

  TinyExperts model;
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  SteadyClock clock;
  std::unique_ptr<Experts> oracle;
  CacheGeometry geometry;
  std::mt19937 random;
};

// The oracle itself, against a plain loop in double precision.
TEST(CachedExperts, TheOracleComputesTheFormula) {
  Bench bench;
  const RoutedRows in = bench.rows(5);
  const TinyShape& s = bench.model.shape();
  for (LayerId layer = 1; layer < bench.model.layers(); ++layer) {
    const std::vector<float> got = bench.run(*bench.oracle, layer, in);
    std::vector<std::byte> slot(bench.model.store().slot_bytes(layer)), staging;
    for (int64_t r = 0; r < in.rows; ++r) {
      std::vector<double> want(size_t(s.hidden), 0.);
      for (int k = 0; k < s.top_k; ++k) {
        const size_t a = size_t(r) * size_t(s.top_k) + size_t(k);
        bench.model.store().fill({layer, in.ids[a]}, slot, staging);
        const ExpertView view = view_slot(bench.model.store().layout(layer), slot.data());
        std::vector<float> row(static_cast<size_t>(std::max(s.hidden, s.ffn)));
        const auto dot = [&](const MatrixView& w, int64_t i, const auto* x) {
          dequantize_row(w, i, row.data());
          double sum = 0;
          for (int64_t j = 0; j < w.cols; ++j) sum += double(row[size_t(j)]) * double(x[j]);
          return sum;
        };
        const float* x = &in.x[size_t(r) * size_t(s.hidden)];
        std::vector<double> inner(static_cast<size_t>(s.ffn));
        for (int i = 0; i < s.ffn; ++i) {
          const double gate = dot(view.gate, i, x), up = dot(view.up, i, x);
          inner[size_t(i)] = gate / (1 + std::exp(-gate)) * up;
        }
        for (int i = 0; i < s.hidden; ++i) want[size_t(i)] += double(in.weights[a]) * dot(view.down, i, inner.data());
      }
      for (int i = 0; i < s.hidden; ++i)
        ASSERT_NEAR(got[size_t(r) * size_t(s.hidden) + size_t(i)], want[size_t(i)],
                    2e-2 * (1 + std::abs(want[size_t(i)])))
            << "layer " << layer << " row " << r;
    }
  }
}

class CachedExpertsBudgets : public ::testing::TestWithParam<std::string> {};

TEST_P(CachedExpertsBudgets, F13_BitIdenticalAtEveryBudget) {
  Bench bench;
  const uint64_t least = bench.geometry.largest_footprint(), all = bench.geometry.total_footprint();
  for (const uint64_t budget : {least, 2 * least, all / 4, all / 2, all - 4096, all, 2 * all}) {
    ExpertTierOptions options;
    options.policy = GetParam();
    auto tier = bench.tier(budget, options);
    for (const int64_t n : {1, 1, 2, 33, 1, 3, 1}) ASSERT_EQ(bench.step(tier->experts(), n), 0) << budget;
    const CacheStats stats = tier->cache().stats();
    EXPECT_LE(stats.pool_bytes, budget);
    EXPECT_EQ(stats.in_flight, 0u);
    if (budget >= all) {
      EXPECT_EQ(stats.evictions, 0u) << "everything fits";
      EXPECT_EQ(tier->experts().stats().waves, 0u);
      EXPECT_EQ(bench.step(tier->experts(), 4), 0);
      EXPECT_EQ(tier->cache().stats().misses, stats.misses) << "and stays";
    }
    EXPECT_EQ(tier->pipeline().stats().copies, stats.fills);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, CachedExpertsBudgets, ::testing::Values("lru", "lfu", "lfru", "least-stale"),
                         [](const auto& info) { return ef::testing::test_name(info.param); });

// More than 1024 tokens at once, 64 experts a layer, 8 slots a layer: far fewer slots than distinct experts.
TEST(CachedExperts, F1_FewerSlotsThanDistinctExpertsRunsInWaves) {
  TinyShape shape;
  shape.hidden = 32;
  shape.ffn = 32;
  shape.experts = 64;
  shape.top_k = 8;
  shape.layers = {Format::kF32, Format::kQ8_0};
  Bench bench(shape);
  const BudgetFacts facts = budget_facts(bench.geometry);
  struct Case {
    const char* budget;
    int64_t rows;
  };
  for (const Case c : {Case{"8 slots", 1100}, Case{"min", 48}, Case{"1 slot", 48}}) {
    auto tier = bench.tier(resolve_budget(parse_budget(c.budget), facts, {}).bytes);
    EXPECT_EQ(bench.step(tier->experts(), c.rows), 0) << c.budget;
    EXPECT_EQ(bench.step(tier->experts(), 1), 0) << c.budget;
    EXPECT_GT(tier->experts().stats().waves, 0u) << c.budget;
    EXPECT_GT(tier->cache().stats().deferred, 0u) << c.budget;
    // Every distinct expert of the prompt is read once a layer event, no more.
    EXPECT_LE(tier->cache().stats().fills, 2u * 64 + 2 * 8) << c.budget;
  }
}

TEST(CachedExperts, RefusesABudgetBelowTheLargestExpert) {
  Bench bench;
  const uint64_t least = bench.geometry.largest_footprint();
  EXPECT_EQ(least, 24576u);  // three F32 matrices of 64 x 32
  EXPECT_NO_THROW(bench.tier(least));
  try {
    bench.tier(least - 1);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), fmt::format("expert memory: 24575 bytes are too few: the largest expert takes 24576 bytes "
                                       "(all experts {})",
                                       bench.geometry.total_footprint())
                               .c_str());
  }
}

// The figure that the user is told is the pool that exists, whatever the form of the flag and the formats of the model.
TEST(CachedExperts, F9_TheEffectiveBudgetIsThePool) {
  for (const auto& layers : {std::vector{Format::kF32}, std::vector{Format::kBF16, Format::kQ4_0},
                             std::vector{Format::kQ8_0, Format::kF16, Format::kMXFP4}}) {
    TinyShape shape;
    shape.layers = layers;
    Bench bench(shape);
    const BudgetFacts facts = budget_facts(bench.geometry);
    for (const char* text : {"min", "25%", "40%", "100%", "3 slots", "200KiB", "64MiB"}) {
      const Budget budget = resolve_budget(parse_budget(text), facts, {});
      auto tier = bench.tier(budget.bytes);
      EXPECT_LE(tier->cache().pool_bytes(), budget.bytes) << text;
      EXPECT_GT(tier->cache().pool_bytes() + bench.geometry.page_bytes, budget.bytes) << text;
      EXPECT_TRUE(budget.explanation.find(format_bytes(budget.bytes)) != std::string::npos) << budget.explanation;
    }
  }
}

TEST(CachedExperts, C14_ForcedMovesEveryStep) {
  Bench bench;
  std::mutex mutex;
  std::map<ExpertKey, std::set<const std::byte*>> places;
  ExpertTierOptions options;
  options.experts.evict_every_step = true;
  ExpertCache* cache = nullptr;
  options.pipeline.hook = [&](std::string_view point, ExpertKey key) {
    if (point != "complete") return;
    const std::byte* slot = cache->look(key).slot.data();
    const std::lock_guard lock(mutex);
    places[key].insert(slot);
  };
  auto tier = bench.tier(bench.geometry.total_footprint() / 2, options);
  cache = &tier->cache();
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(bench.step(tier->experts(), 1 + i % 5), 0) << "step " << i;
    ASSERT_EQ(tier->cache().stats().residents, 0u) << "everything has left";
  }
  const std::lock_guard lock(mutex);
  int moved = 0;
  for (const auto& [key, slots] : places) moved += slots.size() > 1;
  EXPECT_EQ(moved, 48) << "of 3 layers of 16 experts";
}

// There is no offload directory: the fast tier is filled from the model's own files and dies with its engine. Two
// models of the same shape, one after the other and side by side, never see each other's experts.
TEST(CachedExperts, F12_AnotherModelNeverSeesTheFirstOnesExperts) {
  Bench first({}, 1), second({}, 2);
  const RoutedRows in = first.rows(3);
  ASSERT_NE(first.run(*first.oracle, 1, in), second.run(*second.oracle, 1, in));
  auto tier = first.tier(first.geometry.total_footprint());
  EXPECT_EQ(first.run(tier->experts(), 1, in), first.run(*first.oracle, 1, in));
  auto other = second.tier(second.geometry.total_footprint());
  EXPECT_EQ(second.run(other->experts(), 1, in), second.run(*second.oracle, 1, in));
  tier.reset();
  tier = second.tier(second.geometry.total_footprint());  // most likely in the same memory
  EXPECT_EQ(second.run(tier->experts(), 1, in), second.run(*second.oracle, 1, in));
  EXPECT_EQ(tier->cache().stats().hits, 0u) << "it begins empty";
}

TEST(CachedExperts, BlocksOfRowsChangeNothing) {
  Bench bench;
  ExpertTierOptions options;
  options.experts.scratch_bytes = 3 * 4 * 64 * sizeof(float);  // three rows of four experts
  auto tier = bench.tier(bench.geometry.total_footprint() / 3, options);
  for (const int64_t n : {1, 3, 4, 31}) ASSERT_EQ(bench.step(tier->experts(), n), 0) << n;
  EXPECT_EQ(tier->experts().stats().layer_events, 3u * (1 + 1 + 2 + 11));
  options.experts.scratch_bytes = 1;  // a row at least
  tier = bench.tier(bench.geometry.total_footprint() / 3, options);
  EXPECT_EQ(bench.step(tier->experts(), 5), 0);
}

TEST(CachedExperts, WorksOutsideOfASteps) {
  Bench bench;
  auto tier = bench.tier(bench.geometry.largest_footprint());
  for (int i = 0; i < 5; ++i) {
    const RoutedRows in = bench.rows(2);
    EXPECT_EQ(bench.run(tier->experts(), 1, in), bench.run(*bench.oracle, 1, in));
  }
  const RoutedRows none = bench.rows(0);
  EXPECT_TRUE(bench.run(tier->experts(), 1, none).empty());
}

// ---- order of arrival ----

std::string name(std::string_view point, ExpertKey key) {
  return fmt::format("{} {}.{}", point, key.layer, key.expert);
}

// One row with these experts.
RoutedRows row_of(Bench& bench, const std::vector<int32_t>& ids) {
  RoutedRows in = bench.rows(1);
  in.ids = ids;
  return in;
}

TEST(CachedExperts, ResidentOnesAreComputedWhileTheMissingAreCopied) {
  Bench bench;
  SeqPoints points;
  ExpertTierOptions options;
  options.pipeline.hook = [&](std::string_view point, ExpertKey key) { points.pass(name(point, key)); };
  auto tier = bench.tier(bench.geometry.total_footprint(), options);
  bench.run(tier->experts(), 1, row_of(bench, {0, 1, 2, 3}));
  // 4 and 5 stay in their copies until 0 and 1 have been computed and let go.
  points.hold("filled 1.4");
  points.hold("filled 1.5");
  const RoutedRows in = row_of(bench, {4, 0, 5, 1});
  tier->experts().begin_step();
  const uint64_t seen = tier->cache().changes();
  std::thread disk([&] {
    // Only the release of 0 and 1 can change anything now.
    for (uint64_t changes = seen; changes < seen + 2;) changes = tier->cache().wait_change(changes);
    points.let_go("filled 1.5");
    points.wait_for("complete 1.5");
    points.let_go("filled 1.4");
  });
  const std::vector<float> out = bench.run(tier->experts(), 1, in);
  disk.join();
  tier->experts().end_step();
  EXPECT_EQ(out, bench.run(*bench.oracle, 1, in));
}

TEST(CachedExperts, AnyOrderOfArrivalGivesTheSameBits) {
  Bench bench;
  std::vector<int32_t> arrival = {2, 5, 7, 11};
  const RoutedRows in = row_of(bench, {7, 2, 11, 5});
  const std::vector<float> want = bench.run(*bench.oracle, 1, in);
  int orders = 0;
  do {
    SeqPoints points;
    ExpertTierOptions options;
    options.pipeline.hook = [&](std::string_view point, ExpertKey key) { points.pass(name(point, key)); };
    for (const int32_t e : arrival) points.hold(name("filled", {1, e}));
    auto tier = bench.tier(bench.geometry.total_footprint(), options);
    std::thread disk([&] {
      for (const int32_t e : arrival) {
        points.let_go(name("filled", {1, e}));
        points.wait_for(name("complete", {1, e}));
      }
    });
    const std::vector<float> got = bench.run(tier->experts(), 1, in);
    disk.join();
    ASSERT_EQ(got, want);
    ++orders;
  } while (std::next_permutation(arrival.begin(), arrival.end()));
  EXPECT_EQ(orders, 24);
}

TEST(CachedExperts, ALatePrefetchIsPromotedAndAwaited) {
  Bench bench;
  SeqPoints points;
  ExpertTierOptions options;
  options.pipeline.workers = 1;
  options.pipeline.hook = [&](std::string_view point, ExpertKey key) { points.pass(name(point, key)); };
  auto tier = bench.tier(bench.geometry.total_footprint(), options);
  points.hold("start 2.0");
  for (const ExpertKey key : {ExpertKey{2, 0}, ExpertKey{2, 1}, ExpertKey{1, 9}}) {
    const Copy copy{key, tier->cache().reserve(key, 0)->slot};
    tier->pipeline().submit({&copy, 1}, CopyPriority::kPrefetch);
    points.wait_for("start 2.0");  // before a nearer layer is queued
  }
  const RoutedRows in = row_of(bench, {9, 3, 4, 5});
  std::thread disk([&] {
    while (tier->cache().stats().misses < 3) std::this_thread::yield();  // the event has been opened
    points.let_go("start 2.0");
  });
  const std::vector<float> out = bench.run(tier->experts(), 1, in);
  disk.join();
  tier->pipeline().drain();
  EXPECT_EQ(out, bench.run(*bench.oracle, 1, in));
  EXPECT_EQ(tier->cache().stats().late_hits, 1u);
  EXPECT_EQ(tier->pipeline().stats().copies, 6u) << "no expert was copied twice";
}

TEST(CachedExperts, APrefetchCancelledUnderAWaitingStepIsReadAgain) {
  Bench bench;
  auto tier = bench.tier(bench.geometry.total_footprint());
  // In flight by hand: this test is the pipeline of expert 9, and takes it back once the step waits for it.
  ASSERT_TRUE(tier->cache().reserve({1, 9}, 0));
  const RoutedRows in = row_of(bench, {9, 3, 4, 5});
  std::thread canceller([&] {
    const std::vector<ExpertKey> other = {{1, 3}};
    while (tier->cache().stats().misses < 3) std::this_thread::yield();
    tier->cache().wait_any(other);
    tier->cache().fail({1, 9}, nullptr);
  });
  const std::vector<float> out = bench.run(tier->experts(), 1, in);
  canceller.join();
  EXPECT_EQ(out, bench.run(*bench.oracle, 1, in));
  EXPECT_EQ(tier->cache().stats().cancelled_fills, 1u);
}

// ---- faults ----

TEST(CachedExperts, AFailedReadNeverBecomesAWeight) {
  Bench bench;
  // Every read of this event in turn fails for good; then the disk is well again.
  const RoutedRows in = row_of(bench, {7, 2, 11, 5});
  for (LayerId layer = 1; layer < bench.model.layers(); ++layer) {
    const std::vector<float> want = bench.run(*bench.oracle, layer, in);
    for (int64_t nth = 0; nth < 12; ++nth) {
      ExpertTierOptions options;
      options.pipeline.workers = 1;  // reads in a known order: gate, up, down of each expert, ascending
      auto tier = bench.tier(bench.geometry.total_footprint(), options);
      bench.model.faults.fail_next(nth, 2);  // the read and its retry
      const ExpertKey victim{layer, std::vector<int32_t>{2, 5, 7, 11}[size_t(nth / 3)]};
      tier->experts().begin_step();
      try {
        bench.run(tier->experts(), layer, in);
        FAIL() << "layer " << layer << ", read " << nth << ": no error";
      } catch (const DeviceError& e) {
        const std::string message = e.what();
        EXPECT_NE(message.find(fmt::format("layer {}, expert {}", layer, victim.expert)), std::string::npos) << message;
        EXPECT_NE(message.find(fmt::format("layer{}.bin", layer)), std::string::npos) << message;
      }
      tier->experts().end_step();
      tier->pipeline().drain();
      EXPECT_EQ(tier->cache().look(victim).state, ExpertState::kAbsent);
      EXPECT_EQ(tier->cache().page_of(victim), -1);
      EXPECT_EQ(tier->pipeline().stats().failed, 1u);
      EXPECT_EQ(tier->pipeline().stats().retries, 1u);
      // The engine is usable, and right.
      EXPECT_EQ(bench.run(tier->experts(), layer, in), want);
      EXPECT_EQ(tier->cache().stats().in_flight, 0u);
    }
  }
}

TEST(CachedExperts, AReadThatFailsOnceIsRetriedUnseen) {
  Bench bench;
  for (int64_t nth = 0; nth < 6; ++nth) {
    auto tier = bench.tier(bench.geometry.largest_footprint());
    bench.model.faults.fail_next(nth, 1);
    ASSERT_EQ(bench.step(tier->experts(), 2), 0) << nth;
    EXPECT_EQ(tier->pipeline().stats().retries, 1u);
  }
}

TEST(CachedExperts, FaultsInWavesLeaveTheEngineUsable) {
  Bench bench;
  ExpertTierOptions options;
  options.pipeline.workers = 1;  // a read and its retry are neighbours
  auto tier = bench.tier(2 * bench.geometry.largest_footprint(), options);
  int failed = 0;
  for (int i = 0; i < 40; ++i) {
    bench.model.faults.fail_next(i % 13, i % 3 == 0 ? 2 : 0);
    try {
      ASSERT_EQ(bench.step(tier->experts(), 3), 0) << "a wrong result is worse than none, step " << i;
    } catch (const DeviceError&) {
      ++failed;  // begin_step() closes the step that threw
    }
    tier->pipeline().drain();
  }
  EXPECT_EQ(failed, 14) << "every third step";
  bench.model.faults.fail_next(0, 0);
  EXPECT_EQ(bench.step(tier->experts(), 40), 0);
}

// ---- prefill and statistics ----

TEST(CachedExperts, PrefillKeepsTheDecodeSet) {
  TinyShape shape;
  shape.layers = {Format::kF32};
  Bench bench(shape);
  ExpertTierOptions options;
  options.policy = "lru";
  options.experts.transient_rows = 8;
  auto tier = bench.tier(8 * bench.geometry.largest_footprint(), options);
  bench.run(tier->experts(), 1, row_of(bench, {0, 1, 2, 3}));
  bench.run(tier->experts(), 1, row_of(bench, {4, 5, 6, 7}));
  // A prompt wants all 16 experts: 8 are hits, the others share two slots.
  ASSERT_EQ(bench.step(tier->experts(), 64), 0);
  int kept = 0;
  for (ExpertId e = 0; e < 8; ++e) kept += tier->cache().look({1, e}).state == ExpertState::kResident;
  EXPECT_EQ(kept, 6);
}

TEST(CachedExperts, StatisticsCount) {
  TinyShape shape;
  shape.layers = {Format::kF32};
  Bench bench(shape);
  auto tier = bench.tier(bench.geometry.total_footprint());
  bench.run(tier->experts(), 1, row_of(bench, {0, 1, 2, 3}));
  bench.run(tier->experts(), 1, row_of(bench, {3, 2, 9, 8}));
  const CacheStats cache = tier->cache().stats();
  EXPECT_EQ(cache.hits, 2u);
  EXPECT_EQ(cache.misses, 6u);
  EXPECT_EQ(cache.fills, 6u);
  EXPECT_EQ(cache.layers[1].misses, 6u);
  EXPECT_EQ(tier->pipeline().stats().bytes_read, 6u * 24576);
  const CachedExpertsStats stats = tier->experts().stats();
  EXPECT_EQ(stats.steps, 2u);
  EXPECT_EQ(stats.layer_events, 2u);
  EXPECT_EQ(stats.waves, 0u);
  EXPECT_EQ(tier->cache().policy_counters().accesses, 8u);
}

}  // namespace
}  // namespace ef
