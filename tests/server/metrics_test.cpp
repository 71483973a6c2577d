// What /metrics, /health/experts, /report and /props say, beside what is counted in other ways.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/server/exposition.h"
#include "tests/server/rig.h"

namespace ef::testing {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

struct Fault {
  const char* what;
  const char* text;
};

TEST(ExpositionText, FindsEachFault) {
  const std::string good = "# HELP a_total x\n# TYPE a_total counter\na_total{l=\"q\\\"\\\\\\n\"} 1\n";
  ExpositionText read(good);
  EXPECT_TRUE(read.faults.empty()) << joined(read.faults);
  EXPECT_EQ(read.families[0].samples[0].labels.at("l"), "q\"\\\n");
  const Fault faults[] = {
      {"no end", "# HELP a x\n# TYPE a gauge\na 1"},
      {"no type", "# HELP a x\na 1\n"},
      {"no help", "# TYPE a gauge\na 1\n"},
      {"type twice", "# HELP a x\n# TYPE a gauge\n# TYPE a gauge\na 1\n"},
      {"unknown type", "# HELP a x\n# TYPE a meter\na 1\n"},
      {"family apart", "# HELP a x\n# TYPE a gauge\na 1\n# HELP b x\n# TYPE b gauge\nb 1\na{l=\"1\"} 2\n"},
      {"sample twice", "# HELP a x\n# TYPE a gauge\na{l=\"1\",m=\"2\"} 1\na{m=\"2\",l=\"1\"} 1\n"},
      {"counter's name", "# HELP a x\n# TYPE a counter\na 1\n"},
      {"gauge's name", "# HELP a_total x\n# TYPE a_total gauge\na_total 1\n"},
      {"counter below 0", "# HELP a_total x\n# TYPE a_total counter\na_total -1\n"},
      {"counter NaN", "# HELP a_total x\n# TYPE a_total counter\na_total NaN\n"},
      {"name", "# HELP a-b x\n# TYPE a-b gauge\na-b 1\n"},
      {"label name", "# HELP a x\n# TYPE a gauge\na{l:x=\"1\"} 1\n"},
      {"open label", "# HELP a x\n# TYPE a gauge\na{l=\"1} 1\n"},
      {"escape", "# HELP a x\n# TYPE a gauge\na{l=\"\\t\"} 1\n"},
      {"number", "# HELP a x\n# TYPE a gauge\na 1x\n"},
      {"infinity's name", "# HELP a x\n# TYPE a gauge\na inf\n"},
      {"not cumulative",
       "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"},
      {"no +Inf", "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_sum 1\nh_count 2\n"},
      {"count", "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 3\n"},
      {"bounds",
       "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"2\"} 1\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum "
       "1\nh_count 1\n"},
      {"quantile", "# HELP s x\n# TYPE s summary\ns{quantile=\"2\"} 1\ns_sum 1\ns_count 1\n"}};
  for (const Fault& fault : faults) EXPECT_FALSE(ExpositionText(fault.text).faults.empty()) << fault.what;
}

// A quarter of the experts, and prefetch on: every kind of metric has something to say.
RigSetup tight_setup() {
  RigSetup setup;
  setup.budget = "25%";
  setup.parallel = 2;
  setup.server.alias = "a \"b\" \\c\nd";
  setup.server.cold = 2;
  return setup;
}

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

TEST(Metrics, AreWellFormedAndCountersRise) {
  ServerRig rig(tight_setup());
  std::map<std::string, double> before;
  for (int round = 0; round < 4; ++round) {
    ExpositionText now(rig.get("/metrics").body);
    EXPECT_TRUE(now.faults.empty()) << joined(now.faults);
    EXPECT_GT(now.families.size(), 60u);
    for (const MetricFamily& f : now.families)
      for (const MetricSample& s : f.samples) {
        EXPECT_EQ(s.labels.at("model_name"), "a \"b\" \\c\nd") << s.name;
        EXPECT_EQ(s.labels.at("engine"), "0");
      }
    const auto counters = now.counters();
    for (const auto& [key, value] : before) {
      ASSERT_TRUE(counters.count(key)) << key;
      EXPECT_GE(counters.at(key), value) << key;
    }
    before = counters;
    EXPECT_EQ(rig.post("/v1/completions", completion_body(kStory, 6 + round)).status, 200);
    ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  }
}

TEST(Metrics, TiersAndLayersAddUp) {
  ServerRig rig(tight_setup());
  ASSERT_EQ(rig.post("/v1/completions", completion_body(kStory, 24)).status, 200);
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  ExpositionText m(rig.get("/metrics").body);
  const double hits = m.value("expertflow:expert_hits_total"), misses = m.value("expertflow:expert_misses_total");
  EXPECT_GT(hits, 0);
  EXPECT_GT(misses, 0);
  EXPECT_EQ(m.value("expertflow:tier_expert_hits_total", {{"tier", "fast"}}), hits);
  EXPECT_EQ(m.value("expertflow:tier_expert_hits_total", {{"tier", "in_flight"}}) +
                m.value("expertflow:tier_expert_hits_total", {{"tier", "slow"}}),
            misses);
  EXPECT_NEAR(sum(m.values("expertflow:tier_expert_hit_rate")), 1, 1e-12);
  const std::vector<double> by_layer = m.values("expertflow:layer_expert_hits_total");
  EXPECT_EQ(by_layer.size(), 12u);  // of the demo model
  EXPECT_EQ(sum(by_layer), hits);
  EXPECT_EQ(sum(m.values("expertflow:layer_expert_misses_total")), misses);
  EXPECT_NEAR(m.value("expertflow:layer_expert_hit_rate", {{"layer", "3"}}),
              m.value("expertflow:layer_expert_hits_total", {{"layer", "3"}}) /
                  (m.value("expertflow:layer_expert_hits_total", {{"layer", "3"}}) +
                   m.value("expertflow:layer_expert_misses_total", {{"layer", "3"}})),
              1e-12);
  EXPECT_NEAR(m.value("expertflow:expert_swap_rate"), m.value("expertflow:expert_evictions_total") / (hits + misses),
              1e-12);
  // What was read ahead counts by its slots, which differ a little from what is read for them.
  const double read = m.value("expertflow:expert_bytes_read_total");
  EXPECT_GT(m.value("expertflow:expert_bytes_useful_total"), 0);
  EXPECT_LE(m.value("expertflow:expert_bytes_useful_total"), 1.05 * read);
  EXPECT_GT(m.value("expertflow:link_bytes_per_second", {{"link", "disk"}}), 0);
  EXPECT_GT(m.value("expertflow:expert_stall_seconds_total"), 0);
  EXPECT_GE(m.value("expertflow:prediction_distance"), 1);
  EXPECT_TRUE(m.faults.empty()) << joined(m.faults);
}

TEST(Metrics, MemoryIsByRegionAndPart) {
  ServerRig rig(tight_setup());
  ASSERT_EQ(rig.post("/v1/completions", completion_body(kStory, 8)).status, 200);
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  ExpositionText m(rig.get("/metrics").body);
  const double budget = m.value("expertflow:expert_memory_budget_bytes");
  const double all = m.value("expertflow:expert_memory_all_bytes");
  EXPECT_NEAR(budget / all, 0.25, 0.02);
  EXPECT_LE(m.value("expertflow:expert_memory_used_bytes"), budget);
  EXPECT_GT(m.value("expertflow:expert_memory_used_bytes"), 0.5 * budget);
  const double resident = m.value("expertflow:expert_slots", {{"state", "resident"}});
  EXPECT_GT(resident, 12 * 4);  // top-4 of twelve layers were computed
  EXPECT_LE(resident, 12 * 32 * 0.27);
  EXPECT_EQ(m.value("expertflow:expert_slots", {{"state", "pinned"}}), 0);  // between steps
  // 2,048 tokens of 32 a block; one prompt of less than a block is held by nobody once it is answered.
  const std::vector<double> kv = m.values("expertflow:kv_cache_bytes");
  ASSERT_EQ(kv.size(), 3u);
  for (const double bytes : kv) EXPECT_EQ(bytes, double(int64_t(bytes)));
  EXPECT_NEAR(sum(kv), m.value("expertflow:memory_planned_bytes", {{"part", "KV cache"}}), 1);
  EXPECT_GT(m.value("expertflow:memory_used_bytes", {{"region", "static"}}), 0);
  EXPECT_GE(m.value("expertflow:memory_peak_bytes", {{"region", "elastic"}}),
            m.value("expertflow:memory_used_bytes", {{"region", "elastic"}}));
  EXPECT_TRUE(m.faults.empty()) << joined(m.faults);
}

TEST(Metrics, AStepUnderWayPinsWhatItUses) {
  StepGate gate;
  RigSetup setup = tight_setup();
  setup.before_step = gate.hook();
  ServerRig rig(setup);
  rig.before_end = [&] { gate.open(); };
  Client client(rig.port());
  client.send(Client::request("POST", "/v1/completions", completion_body(kStory, 4).dump()));
  gate.permit(2);
  gate.wait_arrived(3);
  ExpositionText m(rig.get("/metrics").body);  // while the engine stands still
  EXPECT_EQ(m.value("vllm:num_requests_running"), 1);
  EXPECT_GT(m.value("expertflow:kv_cache_bytes", {{"held_by", "requests"}}), 0);
  EXPECT_TRUE(m.faults.empty()) << joined(m.faults);
}

TEST(Metrics, TheReportKeepsColdAndWarmApart) {
  ServerRig rig(tight_setup());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rig.post("/v1/completions", completion_body(kStory, 3 + i)).status, 200);
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  const Json report = rig.get("/report").json();
  EXPECT_EQ(report["sla"]["cold_requests"], 2);
  EXPECT_EQ(report["cold"]["requests"], 2);
  EXPECT_EQ(report["warm"]["requests"], 3);
  EXPECT_GT(report["cold"]["ttft_seconds"]["p50"].get<double>(), 0);
  EXPECT_GE(report["warm"]["itl_seconds"]["p99"].get<double>(), report["warm"]["itl_seconds"]["p50"].get<double>());
  EXPECT_EQ(report["warm_up"]["how"], "off");
  ExpositionText m(rig.get("/metrics").body);
  EXPECT_EQ(m.value("expertflow:ttft_seconds_count", {{"phase", "cold"}}), 2);
  EXPECT_EQ(m.value("expertflow:itl_seconds_count", {{"phase", "cold"}}), 2 + 3);
  EXPECT_EQ(m.value("expertflow:itl_seconds_count", {{"phase", "warm"}}), 4 + 5 + 6);
  EXPECT_EQ(m.value("expertflow:sla_requests_total", {{"phase", "warm"}}), 3);
  EXPECT_EQ(m.value("expertflow:ttft_seconds", {{"phase", "warm"}, {"quantile", "0.99"}}),
            report["warm"]["ttft_seconds"]["p99"].get<double>());
  EXPECT_TRUE(m.faults.empty()) << joined(m.faults);
}

TEST(Metrics, HealthJudgesWhatHasBeenMeasured) {
  ServerRig rig(tight_setup());
  ASSERT_EQ(rig.post("/v1/completions", completion_body(kStory, 64)).status, 200);
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  const Json health = rig.get("/health/experts").json();
  std::map<std::string, Json> by_name;
  for (const Json& metric : health["metrics"]) by_name[metric["name"]] = metric;
  ASSERT_TRUE(by_name["cache_utilization"]["value"].is_number());
  ASSERT_TRUE(by_name["p99_latency"]["value"].is_number());
  // Of 12 x 32 experts a quarter fits: far more than one in four has to leave for each that is asked for.
  const Json swap = by_name["expert_swap_rate"];
  EXPECT_EQ(swap["healthy"].get<bool>(), swap["value"].get<double>() <= swap["range"][1].get<double>());
  if (!swap["healthy"].get<bool>()) {
    EXPECT_EQ(health["status"], "attention");
    EXPECT_NE(swap["advice"].get<std::string>().find("--expert-memory"), std::string::npos);
  }
  ExpositionText m(rig.get("/metrics").body);
  EXPECT_EQ(m.value("expertflow:cache_utilization"), by_name["cache_utilization"]["value"].get<double>());
}

TEST(Metrics, PropsAdviseABatch) {
  ServerRig rig(tight_setup());
  const Json advice = rig.get("/props").json()["batch_advice"];
  // E (1 - (1 - k/E)^B) of 32 experts, top-4: B = 2 asks for 7.5, B = 3 for 10.56; a quarter is 8.
  EXPECT_EQ(advice["expert_sequences"], 2);
  EXPECT_EQ(advice["kv_sequences"], 1);  // 2,048 tokens of context, all together
  EXPECT_EQ(advice["sequences"], 1);
  EXPECT_NE(advice["text"].get<std::string>().find("KV cache holds 1 sequences of 2048 tokens"), std::string::npos);
}

}  // namespace
}  // namespace ef::testing
