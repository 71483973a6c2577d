// --config: the names under which other programs keep these settings, as flags and in a file.
#include <cmath>
#include <nlohmann/json.hpp>

#include "expertflow/base/io.h"
#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

class CliConfig : public ::testing::Test {
 protected:
  std::string file(const std::string& json) const {
    write_file(folder.path / "config.json", json);
    return folder.path / "config.json";
  }
  // The plan of a run, which says what values are in effect.
  ProcessResult plan(const std::string& json, const Arguments& more = {},
                     const std::map<std::string, std::string>& environment = {}) const {
    return expertflow(Arguments{"run", "-m", demo(), "--dry-run", "--config", file(json)} + more, environment);
  }
  TempFolder folder;
};

TEST_F(CliConfig, EveryNameIsTakenAsFlagAndInTheFile) {
  const std::string all = R"({"expert_cache_size": "40%", "prediction_horizon": 2, "prediction_topk": 4,
    "token_schedule_window": 8, "aging_threshold": 3, "offload_device": "disk", "layer_wise_config": {"*": {"prediction_topk": 3}},
    "async_prefetch": true, "eviction_policy": "lru", "max_kv_cache_memory": "50%", "load_in_4bit": false, "port": 0,
    "model": ")" + hf("mixtral") +
                          R"(", "api_key": ["a", "b"]})";
  // The context is the last thing that is looked at before a server would run.
  EXPECT_REFUSED(expertflow({"serve", "--config", file(all), "-c", "9999999999999"}), 2, "ctx-size");
  EXPECT_REFUSED(
      expertflow({"serve", "-m", hf("mixtral"), "--expert-cache-size=40%", "--prediction-horizon=2",
                  "--prediction-topk=4", "--token-schedule-window=8", "--aging-threshold=3", "--offload-device=disk",
                  "--layer-wise-config={}", "--async-prefetch=on", "--eviction-policy=lru", "--max-kv-cache-memory=50%",
                  "--load-in-4bit", "--port=0", "-c", "9999999999999"}),
      2, "ctx-size");
}

// What the guide shows is what programs take: by the server up to its context, by a run (without what only a server
// has, with a model and a budget of its own) to its last token.
TEST_F(CliConfig, TheGuidesExampleIsTaken) {
  const std::string guide = read_text_file(std::string(EF_SOURCE_DIR) + "/docs/guide.md");
  const size_t begin = guide.find("{\"model\": \"model.gguf\"");
  ASSERT_NE(begin, std::string::npos);
  auto json = nlohmann::json::parse(guide.substr(begin, guide.find("\n\n", begin) - begin));
  json["model"] = demo();
  EXPECT_REFUSED(expertflow({"serve", "--config", file(json.dump()), "-c", "9999999999999"}), 2, "ctx-size");
  json.erase("token_schedule_window"), json.erase("aging_threshold");
  json["load_in_4bit"] = false, json["expert_cache_size"] = "40%";
  ASSERT_TRUE(json.contains("layer_wise_config"));
  const auto run = expertflow({"run", "-q", "--config", file(json.dump()), "-p", "Once", "-n", "3", "--temp", "0"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  json["layer_wise_config"] = {{"12", {{"prediction_topk", 2}}}};
  EXPECT_REFUSED(expertflow({"run", "-q", "--config", file(json.dump()), "-p", "Once", "-n", "3"}), 2, "12");
}

TEST_F(CliConfig, TheCommandLineWinsOverTheEnvironmentAndThisOverTheFile) {
  const std::string quarter = R"({"expert_cache_size": "25%", "json": true})";
  const std::map<std::string, std::string> half{{"EXPERTFLOW_EXPERT_MEMORY", "50%"}};
  const auto share = [](const ProcessResult& result) {
    const auto json = nlohmann::json::parse(result.out);
    return std::round(100 * json["expert_budget_bytes"].get<double>() / json["expert_bytes"].get<double>());
  };
  // Within a point: budgets are whole experts.
  EXPECT_NEAR(share(plan(quarter)), 25, 1);
  EXPECT_NEAR(share(plan(quarter, {}, half)), 50, 1);
  EXPECT_NEAR(share(plan(quarter, {"--expert-memory", "75%"}, half)), 75, 1);
  EXPECT_NEAR(share(expertflow({"run", "-m", demo(), "--dry-run"}, {{"EXPERTFLOW_CONFIG", file(quarter)}})), 25, 1);
}

TEST_F(CliConfig, WhatCannotBeTakenIsNamed) {
  EXPECT_REFUSED(plan(R"({"expert_cash_size": "25%"})"), 2, "config.json", "expert_cash_size", "run");
  EXPECT_REFUSED(plan(R"({"token_schedule_window": 4})"), 2, "token_schedule_window", "run has no such flag");
  EXPECT_REFUSED(plan(R"({"prediction_topk": "many"})"), 2, "prediction_topk", "many");
  EXPECT_REFUSED(plan(R"({"load_in_4bit": "yes"})"), 2, "load_in_4bit", "true or false", "yes");
  EXPECT_REFUSED(plan("[]"), 2, "config.json", "object", "array");
  EXPECT_REFUSED(plan("{\n  \"quiet\" true}"), 2, "config.json", "line 2, column");
  EXPECT_REFUSED(plan(R"({"predictor": null})"), 2, "predictor", "found null");
  EXPECT_REFUSED(plan(R"({"predictor": ["auto"]})"), 2, "predictor", R"(found ["auto"])");
  EXPECT_REFUSED(plan(R"({"expert_memory": "25%", "expert_cache_size": "30%"})"), 2, "as expert_memory");
  EXPECT_REFUSED(expertflow({"run", "-m", demo(), "--config", "/nowhere.json"}), 2, "/nowhere.json");
}

TEST_F(CliConfig, ListsAreTakenMemberByMember) {
  const Arguments run{"run", "-q", "-m", demo(), "-p", "Once upon a time", "-n", "9", "--temp", "0"};
  const auto with = [&](const std::string& json) { return expertflow(run + Arguments{"--config", file(json)}); };
  const std::string plain = expertflow(run).out, stop = plain.substr(plain.size() / 2, 6);
  const std::string stopped = expertflow(run + Arguments{"-r", stop}).out;
  EXPECT_LT(stopped.size(), plain.size());
  EXPECT_EQ(with(R"({"reverse_prompt": ["zzz", ")" + stop + R"("]})").out, stopped);
  EXPECT_REFUSED(with(R"({"logit_bias": ["14-100", "[1, '2'] "]})"), 2, R"(found "[1, '2'] ")");
}

TEST_F(CliConfig, FourBitsAreCheckedAndNotMade) {
  EXPECT_REFUSED(plan(R"({"load_in_4bit": true})"), 2, "load-in-4bit", "bits a weight",
                 "Q4_K_M");  // it has 5.5 and more
  const Arguments four{"run", "-m", gguf("qwen3_moe"), "--load-in-4bit", "--dry-run"};
  EXPECT_REFUSED(expertflow(four), 2, "bits a weight");
}

}  // namespace
}  // namespace ef::testing
