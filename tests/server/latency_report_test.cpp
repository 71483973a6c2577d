// Percentiles and the service level by arithmetic, and the profile that one server leaves to the next.
#include "apps/server/latency_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

using server::LatencyReport;

Duration ms(int64_t n) { return std::chrono::milliseconds(n); }

// One that arrives, starts, has its first token and ends at these milliseconds.
CompletionTimes times(int64_t submitted, int64_t started, int64_t first, int64_t ended, int64_t tokens) {
  CompletionTimes t;
  t.submitted = ms(submitted), t.started = ms(started), t.first_token = ms(first), t.ended = ms(ended);
  t.generated_tokens = tokens;
  return t;
}

TEST(LatencyReport, CountsByTheLevelAndByTheOrderOfStarts) {
  LatencyReport report({0.5, 0.1, 2});
  const CompletionTimes slow = times(1000, 1100, 1600, 2000, 5);    // 600 ms to the first token: too late
  const CompletionTimes fine = times(1000, 1200, 1400, 1800, 5);    // 400 ms, 100 ms a token: just within
  const CompletionTimes uneven = times(1000, 1300, 1400, 1804, 5);  // 101 ms a token: not within
  for (const CompletionTimes& t : {slow, fine, uneven}) report.on_start(t);
  report.on_token(fine, ms(100));
  report.on_token(uneven, ms(90));
  report.on_token(uneven, ms(120));
  report.on_end(uneven, "length");
  report.on_end(slow, "stop");
  report.on_end(fine, "stop");
  const auto cold = report.figures(LatencyReport::kCold), warm = report.figures(LatencyReport::kWarm);
  EXPECT_EQ(cold.requests, 2u);
  EXPECT_EQ(cold.within, 1u);
  EXPECT_EQ(warm.requests, 1u);
  EXPECT_EQ(warm.within, 0u);
  const Json json = report.json();
  EXPECT_DOUBLE_EQ(json["cold"]["ttft_seconds"]["p50"].get<double>(), 0.4);
  EXPECT_DOUBLE_EQ(json["cold"]["ttft_seconds"]["p99"].get<double>(), 0.6);
  EXPECT_DOUBLE_EQ(json["cold"]["ttft_seconds"]["mean"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["cold"]["sla_share"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["warm"]["itl_seconds"]["p50"].get<double>(), 0.09);
  EXPECT_DOUBLE_EQ(json["warm"]["itl_seconds"]["max"].get<double>(), 0.12);
}

TEST(LatencyReport, FailuresCountAndClientsThatLeaveDoNot) {
  LatencyReport report({0.5, 0.1, 0});
  const CompletionTimes quick = times(0, 100, 200, 300, 2);
  report.on_start(quick);
  report.on_end(quick, "error");
  report.on_end(times(0, 0, 0, 300, 0), "error");  // never started
  report.on_end(quick, "abort");
  report.on_end(times(0, 100, 0, 300, 0), "length");  // a prompt alone
  const auto warm = report.figures(LatencyReport::kWarm);
  EXPECT_EQ(warm.requests, 2u);
  EXPECT_EQ(warm.failed, 2u);
  EXPECT_EQ(warm.within, 0u);
  EXPECT_EQ(report.figures(LatencyReport::kCold).requests, 0u);
  EXPECT_TRUE(report.json()["cold"]["ttft_seconds"].is_null());
  EXPECT_TRUE(report.json()["cold"]["sla_share"].is_null());
}

TEST(LatencyReport, KeepsTheLatest) {
  server::LatestValues v(3);
  for (const double x : {1., 2., 3., 4., 5.}) v.add(x);
  std::vector<double> kept = v.values();
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(kept, (std::vector<double>{3, 4, 5}));
  EXPECT_EQ(v.count(), 5u);
  EXPECT_EQ(v.sum(), 15);
}

TEST(LatencyReport, RefusesLevelsThatMeanNothing) {
  EXPECT_THROW(LatencyReport({0, 0.1, 0}), ConfigError);
  EXPECT_THROW(LatencyReport({1, -1, 0}), ConfigError);
  EXPECT_THROW(LatencyReport({1, 1, -1}), ConfigError);
}

class ProfiledServer : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "ef-serve-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    setup_.budget = "25%";
    setup_.prefetch = "off";
    setup_.profile = (folder_ / "profile.json").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
  RigSetup setup_;
};

TEST_F(ProfiledServer, LeavesItsUseToTheNextWhichStartsWarm) {
  uint64_t cold_misses = 0;
  Json cold_answer;
  {
    ServerRig rig(setup_);
    EXPECT_EQ(rig.model().warm_up.experts, 0u);
    cold_answer = rig.post("/v1/completions", completion_body(kStory, 32)).json();
    ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
    cold_misses = rig.loop().snapshot().experts.misses;
    EXPECT_FALSE(std::filesystem::exists(setup_.profile));
  }
  ASSERT_TRUE(std::filesystem::exists(setup_.profile));
  setup_.warmup = "auto";
  ServerRig rig(setup_);
  EXPECT_EQ(rig.model().warm_up.how, "profile");
  EXPECT_GT(rig.model().warm_up.experts, 12u * 4);
  // The share of the run before that these experts would have served: above what a quarter of them would by chance.
  EXPECT_GT(rig.model().warm_up.demand, 0.25);
  EXPECT_LE(rig.model().warm_up.demand, 1);
  EXPECT_EQ(rig.loop().snapshot().experts.misses, 0u);  // what warming up reads is nobody's miss
  EXPECT_EQ(rig.post("/v1/completions", completion_body(kStory, 32)).json()["choices"][0]["text"],
            cold_answer["choices"][0]["text"]);
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  EXPECT_LT(rig.loop().snapshot().experts.misses, cold_misses);
  const Json report = rig.get("/report").json();
  EXPECT_EQ(report["warm_up"]["how"], "profile");
  EXPECT_EQ(report["warm_up"]["predicted_hit_rate"].get<double>(), rig.model().warm_up.demand);
}

// The first request of all finds experts that it would have waited for.
TEST_F(ProfiledServer, WithoutAProfileAFewTokensWarmUp) {
  const auto misses_of_the_first = [&](const char* warmup) {
    setup_.warmup = warmup;
    ServerRig rig(setup_);
    const uint64_t before = rig.loop().snapshot().experts.misses;
    const Json warm_up = rig.get("/report").json()["warm_up"];
    EXPECT_EQ(warm_up["how"], warmup == std::string("off") ? "off" : "tokens");
    EXPECT_EQ(warm_up["experts"].get<size_t>() > 12 * 4, warmup != std::string("off"));
    EXPECT_TRUE(warm_up["predicted_hit_rate"].is_null());
    EXPECT_EQ(rig.post("/v1/completions", completion_body(kStory, 1)).status, 200);
    EXPECT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
    return rig.loop().snapshot().experts.misses - before;
  };
  const uint64_t warm = misses_of_the_first("auto");
  EXPECT_LT(warm, misses_of_the_first("off"));
}

}  // namespace
}  // namespace ef::testing
