#include <nlohmann/json.hpp>

#include "expertflow/trace/trace_file.h"
#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

// The model's own top-k, layers and experts, with routing and tokens made up: what a predictor says of it is of no use,
// but it has to say something for each.
std::string made_up_trace(const std::filesystem::path& folder, int top_k = 4) {
  TraceHeader header;
  header.model = "made up", header.hidden = 256, header.top_k = top_k, header.candidates = 2 * top_k;
  header.layers.assign(12, {32, 65536});
  const std::string path = folder / "made-up.trace";
  TraceWriter writer(path, header);
  for (int s = 0; s < 24; ++s) {
    TraceStep step;
    step.step = uint64_t(s) + 1;
    step.rows = {{1, 100 + 7 * s, s}};
    for (int l = 0; l < 12; ++l) {
      TraceLayer layer;
      for (int c = 0; c < 2 * top_k; ++c) {
        layer.candidates.push_back(uint16_t((s * 5 + l + c * 3) % 32));
        layer.probabilities.push_back(uint16_t(8000 - 500 * c));
        if (c < top_k) layer.chosen.push_back(layer.candidates.back());
      }
      step.layers.push_back(layer);
    }
    writer.write(step);
  }
  writer.close();
  return path;
}

TEST(CliReplay, CombinesListsAndGivesJson) {
  const TempFolder folder;
  const std::string trace = made_up_trace(folder.path);
  const Arguments run = {"replay",          "-q",          "--trace",    trace,    "--policy",     "lru,next-use",
                         "--predictor",     "none,oracle", "--distance", "1,auto", "--layer-time", "100",
                         "--expert-memory", "25%,50%",     "-o",         "json"};
  const ProcessResult result = expertflow(run);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto rows = nlohmann::json::parse(result.out);
  ASSERT_EQ(rows.size(), 2u * 2 * (1 + 2));
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("trace"), "made-up");
    EXPECT_EQ(row.at("accesses"), 24 * 12 * 4);
    EXPECT_EQ(row.at("hits").get<int>() + row.at("late").get<int>() + row.at("misses").get<int>(), 24 * 12 * 4);
  }
  EXPECT_EQ(expertflow(run).out, result.out);
}

TEST(CliReplay, BeladyIsARowOfReplaysAlone) {
  const TempFolder folder;
  const ProcessResult result = expertflow(
      {"replay", "-q", "--trace", made_up_trace(folder.path), "--policy", "all", "--layer-time", "100", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto rows = nlohmann::json::parse(result.out);
  EXPECT_EQ(rows.back().at("policy"), "belady");
  for (const auto& row : rows) EXPECT_GE(row.at("misses").get<int>(), rows.back().at("misses").get<int>());
  const ProcessResult run = expertflow({"run", "-m", demo(), "--eviction-policy", "belady", "-p", "Hi", "-n", "1"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(holds(run.err, "which a replay alone has")) << run.err;
}

TEST(CliReplay, AsksTheModelsPredictors) {
  const TempFolder folder;
  const std::string trace = made_up_trace(folder.path);
  const ProcessResult result = expertflow({"replay", "-q", "--trace", trace, "-m", demo(), "--predictor", "gate-ahead",
                                           "--layer-time", "100", "--min-probability", "0", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(nlohmann::json::parse(result.out)[0].at("ahead").get<int>(), 0);
  EXPECT_TRUE(holds(result.err, "recorded with another model")) << result.err;
}

TEST(CliReplay, RefusesByName) {
  const TempFolder folder;
  const std::string trace = made_up_trace(folder.path);
  const Arguments base = {"replay", "-q", "--trace", trace, "--layer-time", "100"};
  EXPECT_EQ(expertflow({"replay"}).exit_code, 2);
  EXPECT_EQ(expertflow({"replay", "--trace", demo()}).exit_code, 3);
  EXPECT_EQ(expertflow({"replay", "--trace", trace}).exit_code, 2);  // no times
  const auto refused = [&](const Arguments& more, const char* part) {
    const ProcessResult result = expertflow(base + more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_TRUE(holds(result.err, part)) << result.err;
  };
  refused({"--policy", "fifo"}, "fifo");
  refused({"--predictor", "prophet"}, "--model");
  refused({"--expert-memory", "6GiB"}, "--expert-memory: expected a share");
  refused({"--distance", "0"}, "--distance");
  refused({"--distance", "1.5"}, "whole");
  refused({"--bandwidth-changes", "1.5:1"}, "--bandwidth-changes");
  EXPECT_REFUSED(expertflow(base + Arguments{"--svg", "/nowhere/x.svg"}), 4, "--svg");
  refused({"--svg", trace}, "expected a file of its own, found what --trace names");
  refused({"--bandwidth", "1,,2"}, "--bandwidth");
  refused({"--bandwidth-changes", "10:1,5:2"}, "ascending");
  refused({"-o", "xml"}, "--output");
  refused({"--before-router", "1"}, "--before-router");
  const std::string other = made_up_trace(folder.path, 2);
  const ProcessResult result =
      expertflow({"replay", "-q", "--trace", other, "--layer-time", "100", "-m", demo(), "--predictor", "gate-ahead"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(holds(result.err, "12 layers and top-2")) << result.err;
}

}  // namespace
}  // namespace ef::testing
