// Plans of memory before anything is loaded (--dry-run), caps (--device-memory), and what was held (--memory-report).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "expertflow/backend/cuda_backend.h"
#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

using Json = nlohmann::json;

Arguments plan_of(const std::string& model, const Arguments& more = {}) {
  return Arguments{"run", "-m", model, "-c", "256", "--expert-memory", "50%"} + more;
}
Json plan_json(const std::string& model, const Arguments& more = {}) {
  const auto result = expertflow(plan_of(model, {"--dry-run", "--json"}) + more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return Json::parse(result.out, nullptr, false);
}
uint64_t part(const Json& plan, const std::string& name) {
  for (const Json& region : plan.at("regions"))
    for (const Json& p : region.at("parts"))
      if (p.at("part") == name) return p.at("bytes");
  ADD_FAILURE() << "no part " << name;
  return 0;
}

TEST(CliMemory, ADryRunPrintsThePlanOfEveryKindOfModel) {
  for (const std::string& model : {demo(), hf("mixtral"), gguf("mixtral"), hf("deepseek_v2"), hf("gpt_oss")}) {
    const Json plan = plan_json(model);
    uint64_t sum = 0;
    for (const Json& region : plan.at("regions"))
      for (const Json& p : region.at("parts")) sum += p.at("bytes").get<uint64_t>();
    EXPECT_EQ(plan.at("taken_bytes"), sum) << model;
    EXPECT_EQ(plan.at("device"), "cpu");
    EXPECT_EQ(plan.at("reserved"), false);
    EXPECT_GT(plan.at("remaining_bytes"), 0) << model;
    const auto text = expertflow(plan_of(model, {"--dry-run"}));
    EXPECT_EQ(text.exit_code, 0) << text.err;
    for (const char* word : {"static", "dynamic", "elastic", "weights", "KV cache", "expert slots", "total"})
      EXPECT_TRUE(holds(text.out, word)) << word << " in: " << text.out;
    EXPECT_EQ(text.err, "");
  }
  // 3 layers, 256 tokens, keys and values of 2 heads of 16, F16
  EXPECT_EQ(part(plan_json(hf("mixtral")), "KV cache"), 3u * 256 * 2 * (16 + 16) * 2);
}

// The second half of the file is no longer what it was: a run fails, a plan does not see it.
TEST(CliMemory, ADryRunReadsHeadersAlone) {
  const TempFolder folder;
  const std::string damaged = folder.path / "mixtral.gguf";
  std::filesystem::copy_file(gguf("mixtral"), damaged);
  const auto size = std::filesystem::file_size(damaged);
  {
    std::fstream file(damaged, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(std::streamoff(size / 2));
    const std::string ones(size - size / 2, '\xff');
    file.write(ones.data(), std::streamsize(ones.size()));
  }
  EXPECT_EQ(plan_json(damaged).at("taken_bytes"), plan_json(gguf("mixtral")).at("taken_bytes"));
  EXPECT_EQ(expertflow(plan_of(damaged, {"--token-ids", "5,6", "-n", "1"})).exit_code, 3);
}

TEST(CliMemory, WhatDoesNotFitIsRefusedAsARunWouldBe) {
  for (const Arguments& more : std::vector<Arguments>{{"--device-memory", "1MiB"},
                                                      {"--expert-memory", "1"},
                                                      {"--max-kv-cache-memory", "1KiB"},
                                                      {"--isa", "mmx"},
                                                      {"--device-memory", "12 slots"},
                                                      {"--device-memory", "0%"},
                                                      {"--ubatch-size", "0"}}) {
    const Arguments asked = Arguments{"run", "-m", hf("mixtral"), "-c", "256"} + more;
    const auto plan = expertflow(asked + Arguments{"--dry-run"});
    const auto run = expertflow(asked + Arguments{"--token-ids", "5,6", "-n", "1"});
    EXPECT_EQ(plan.exit_code, 2) << more[0] << ": " << plan.err;
    EXPECT_EQ(plan.out, "");
    EXPECT_EQ(run.exit_code, 2) << more[0] << ": " << run.err;
    EXPECT_TRUE(holds(run.err, plan.err.substr(0, 60))) << plan.err << run.err;
  }
  EXPECT_REFUSED(expertflow(plan_of(hf("mixtral"), {"--dry-run", "--device-memory", "1MiB"})), 2,
                 "at most 1.00 MiB may be used (--device-memory 1MiB)");
}

TEST(CliMemory, DevicesThatAreNotThereHaveNoPlan) {
  if (cuda_device_count() > 0) return;
  EXPECT_REFUSED(expertflow(plan_of(hf("mixtral"), {"--dry-run", "--device", "cuda"})), 2, "device:");
}

TEST(CliMemory, FlagsWithoutEffectAreRefused) {
  EXPECT_REFUSED(expertflow(plan_of(hf("mixtral"), {"--json"})), 2, "--json", "--dry-run");
  EXPECT_REFUSED(expertflow(plan_of(hf("mixtral"), {"--dry-run", "--memory-report"})), 2, "--memory-report");
  EXPECT_REFUSED(expertflow(plan_of(hf("mixtral"), {"--dry-runs"})), 2, "--dry-runs");
  EXPECT_REFUSED(expertflow({"bench", "-m", hf("mixtral"), "--dry-run", "-o", "csv"}), 2, "--output", "csv");
}

TEST(CliMemory, BenchPlansEveryEngine) {
  const auto result = expertflow({"bench", "-m", hf("mixtral"), "-p", "32", "-n", "8", "-t", "1,2", "--expert-memory",
                                  "100%,min", "--dry-run", "-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json plans = Json::parse(result.out, nullptr, false);
  ASSERT_EQ(plans.size(), 4u);
  EXPECT_EQ(plans[0].at("threads"), 1);
  EXPECT_EQ(plans[3].at("expert_memory"), "min");
  EXPECT_EQ(part(plans[0], "KV cache"), 3u * 32 * 2 * (16 + 16) * 2);
  EXPECT_GT(part(plans[0], "expert slots"), part(plans[1], "expert slots"));
  const auto text = expertflow({"bench", "-m", hf("mixtral"), "-p", "32", "-n", "8", "--dry-run"});
  EXPECT_TRUE(holds(text.out, "expert memory auto") && holds(text.out, "KV cache")) << text.out;
}

TEST(CliMemory, AReportOfWhatWasHeld) {
  const Arguments run = {"run", "-m",     hf("mixtral"), "--token-ids",     "5,6,7", "-n",
                         "3",   "--temp", "0",           "--expert-memory", "50%"};
  const auto plain = expertflow(run), asked = expertflow(run + Arguments{"--memory-report"}),
             verbose = expertflow(run + Arguments{"-v"});
  EXPECT_EQ(asked.exit_code, 0);
  EXPECT_EQ(asked.out, plain.out);
  for (const char* word : {"memory: static:", "memory: dynamic:", "memory: elastic:", "memory: slots:", "fragmentation",
                           "taken after loading, in 3 steps", "memory: held 3 steps: weights, "}) {
    EXPECT_TRUE(holds(asked.err, word)) << word << " in: " << asked.err;
    EXPECT_TRUE(holds(verbose.err, word)) << word << " in: " << verbose.err;
    EXPECT_FALSE(holds(plain.err, word)) << word;
  }
}

}  // namespace
}  // namespace ef::testing
