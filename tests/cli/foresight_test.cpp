// Traces, statistics and profiles through the binary.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "expertflow/base/io.h"
#include "expertflow/trace/trace_file.h"
#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

using nlohmann::json;

Arguments ids_run(const Arguments& more) {
  return Arguments{"run", "-q", "-m", hf("olmoe"), "--token-ids", "1,2,3,4,5", "-n", "12", "--temp", "0"} + more;
}

TEST(CliTrace, HoldsEveryTokenOfARun) {
  const TempFolder folder;
  const std::string file = folder.path / "run.trace";
  const auto result = expertflow(ids_run({"--expert-memory", "50%", "--record-trace", file, "--record-hidden"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Trace trace = read_trace(file);
  EXPECT_TRUE(trace.header.hidden_states);
  EXPECT_EQ(trace.header.fingerprint.size(), 16u);
  // Five tokens of the prompt, then eleven that were fed (the last one is not).
  ASSERT_EQ(trace.steps.size(), 12u);
  EXPECT_EQ(trace.steps[0].phase, TracePhase::kPrefill);
  ASSERT_EQ(trace.steps[0].rows.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(trace.steps[0].rows[size_t(i)].token, i + 1);
  std::string generated;
  for (size_t s = 1; s < trace.steps.size(); ++s) {
    EXPECT_EQ(trace.steps[s].phase, TracePhase::kDecode);
    ASSERT_EQ(trace.steps[s].rows.size(), 1u);
    EXPECT_EQ(trace.steps[s].rows[0].position, int(4 + s));
    generated += std::to_string(trace.steps[s].rows[0].token) + ",";
  }
  EXPECT_EQ(result.out.substr(0, generated.size()), generated) << "the tokens that were printed";
  const int top_k = trace.header.top_k;
  for (const TraceLayer& layer : trace.steps[3].layers) {
    EXPECT_GT(layer.compute_ns, 0u);
    EXPECT_EQ(layer.x.size(), size_t(trace.header.hidden));
    ASSERT_EQ(layer.chosen.size(), size_t(top_k));
    // This router takes the most probable ones.
    for (int k = 0; k < top_k; ++k) EXPECT_EQ(layer.chosen[size_t(k)], layer.candidates[size_t(k)]);
  }
}

// A prompt of eight tokens and four that are decoded after it.
TEST(CliTrace, BenchWritesOneToo) {
  const TempFolder folder;
  const std::string file = folder.path / "bench.trace";
  const Arguments one = {"bench", "-q", "-m", hf("olmoe"), "--expert-memory", "50%", "-t", "1", "--no-peaks"};
  const auto result =
      expertflow(one + Arguments{"-p", "0", "-n", "0", "-pg", "8,4", "-r", "1", "--no-warmup", "--record-trace", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Trace trace = read_trace(file);
  EXPECT_FALSE(trace.header.hidden_states);
  ASSERT_EQ(trace.steps.size(), 5u);
  EXPECT_EQ(trace.steps[0].phase, TracePhase::kPrefill);
  EXPECT_EQ(trace.steps[0].rows.size(), 8u);
  for (size_t s = 1; s < 5; ++s) {
    ASSERT_EQ(trace.steps[s].rows.size(), 1u);
    EXPECT_EQ(trace.steps[s].phase, TracePhase::kDecode);
    EXPECT_EQ(trace.steps[s].rows[0].position, int(7 + s));
  }
  EXPECT_TRUE(holds(expertflow({"inspect", file}).out, "5 steps, 12 tokens of 1 requests"));
}

TEST(CliTrace, InspectSaysHowExpertsWereUsed) {
  const TempFolder folder;
  const std::string file = folder.path / "run.trace", svg = folder.path / "load.svg";
  ASSERT_EQ(expertflow(ids_run({"--record-trace", file})).exit_code, 0);
  const auto text = expertflow({"inspect", file, "--heat-map", svg});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_TRUE(holds(text.out, "12 steps, 16 tokens of 1 requests")) << text.out;
  EXPECT_TRUE(holds(read_text_file(svg), "</svg>"));
  const json j = json::parse(expertflow({"inspect", file, "--json"}).out);
  EXPECT_EQ(j["rows"], 16);
  for (const json& layer : j["layers"]) {
    uint64_t rows = 0;
    for (const json& n : layer["rows_by_expert"]) rows += n.get<uint64_t>();
    EXPECT_EQ(rows, 16 * j["top_k"].get<uint64_t>());
  }
}

TEST(CliTrace, MistakesAreRefusedByName) {
  const TempFolder folder;
  EXPECT_REFUSED(expertflow(ids_run({"--record-hidden"})), 2, "--record-hidden", "--record-trace");
  EXPECT_REFUSED(expertflow(ids_run({"--record-trace", folder.path / "no" / "such.trace"})), 4, "such.trace");
  EXPECT_REFUSED(expertflow({"inspect", demo()}), 3, "demo-Q5_K_M.gguf");
  EXPECT_REFUSED(expertflow({"inspect", demo(), "--tensors"}), 2, "--tensors");
  EXPECT_REFUSED(expertflow({"inspect", "-m", demo(), "--heat-map", "x.svg"}), 2, "--heat-map");
}

TEST(CliStats, NamesAreThoseOfDashboards) {
  const TempFolder folder;
  const std::string file = folder.path / "stats.json";
  const auto result =
      expertflow({"run", "-m", hf("olmoe"), "--token-ids", "1,2,3,4,5", "-n", "12", "--temp", "0", "--expert-memory",
                  "50%", "--async-prefetch", "on", "--prediction-horizon", "2", "--stats", "--stats-json", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.err, "cache_utilization")) << result.err;
  EXPECT_TRUE(holds(result.err, "prefetch on: asked for")) << result.err;
  const json j = json::parse(read_text_file(file));
  for (const char* name : {"prediction_hit_rate", "expert_swap_rate", "cache_utilization", "p99_latency"})
    EXPECT_TRUE(j[name].is_number()) << name;
  EXPECT_TRUE(j["token_defer_rate"].is_null());
  EXPECT_EQ(j["prediction_by_distance"].size(), 2u);
  EXPECT_EQ(j["prefetch"]["governor"]["mode"], "on");
  EXPECT_EQ(j["prefetch"]["distance"]["changes"].size(), 0u);
  EXPECT_GE(j["prediction"]["recall_at_m"], j["prediction"]["recall_at_k"]);
}

TEST(CliProfile, IsKeptOutsideTheModelAndUsed) {
  const TempFolder folder;
  const std::map<std::string, std::string> environment = {{"XDG_CACHE_HOME", folder.path / "cache"}};
  const auto run = [&](const Arguments& more) {
    auto result = expertflow(Arguments{"run", "-m", hf("olmoe"), "--token-ids", "1,2,3,4,5", "-n", "12", "--temp", "0",
                                       "--expert-memory", "50%"} +
                                 more,
                             environment);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  const auto first = run({"--warmup", "profile"});
  EXPECT_TRUE(holds(first.err, "there is no profile of this model yet")) << first.err;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path / "cache" / "expertflow" / "profiles"))
    files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(json::parse(read_text_file(files[0]))["tokens"], 16);
  const auto second = run({"--warmup", "profile"});
  EXPECT_TRUE(holds(second.err, "warm-up (profile): ")) << second.err;
  EXPECT_EQ(second.out, first.out);
  EXPECT_NEAR(json::parse(read_text_file(files[0]))["tokens"].get<double>(), 32, 1);
  write_file(files[0], "{");
  const auto third = run({"--warmup", "profile"});
  EXPECT_TRUE(holds(third.err, "expert profile ignored: ")) << third.err;
  EXPECT_EQ(third.out, first.out);
  EXPECT_TRUE(holds(run({"--warmup", "tokens"}).err, "warm-up (tokens): "));
  EXPECT_FALSE(holds(run({}).err, "warm-up")) << "one answer is there sooner without";
}

// A trace, statistics or a picture never takes the place of what the same command reads or writes.
TEST(CliOutputs, AreFilesOfTheirOwn) {
  const TempFolder folder;
  const std::string model = folder.path / "m-00001-of-00002.gguf", own = folder.path / "a.trace";
  const std::string shard = folder.path / "m-00002-of-00002.gguf", link = folder.path / "link";
  for (const std::string& file : {model, shard}) write_file(file, "weights");
  std::filesystem::create_symlink(shard, link);
  const Arguments run = {"run", "-m", model, "-p", "a"};
  write_file(folder.path / "c.json", "{\"record_trace\": \"" + own + "\", \"stats_json\": \"" + own + "\"}");
  EXPECT_REFUSED(expertflow(run + Arguments{"--config", folder.path / "c.json"}), 2, "what --stats-json names");
  const std::string notes = folder.path / "notes";
  write_file(notes + ".partial", "a prompt");
  EXPECT_REFUSED(expertflow({"run", "-m", model, "-f", notes + ".partial", "--stats-json", notes}), 2,
                 "what --file names");
  EXPECT_REFUSED(expertflow(run + Arguments{"--stats-json", folder.path / "m-00001-of-00002.predictor.gguf"}), 2,
                 "what --predictor names");
  for (const std::string& file : {model, shard, link})
    EXPECT_REFUSED(expertflow(run + Arguments{"--record-trace", file}), 2, "--record-trace", "what --model names");
  EXPECT_REFUSED(expertflow(run + Arguments{"--record-trace", own, "--stats-json", folder.path / "." / "a.trace"}), 2,
                 "what --stats-json names");
  EXPECT_REFUSED(expertflow(run + Arguments{"--predictor", own + ":hybrid", "--stats-json", own}), 2, "--predictor");
  EXPECT_REFUSED(expertflow({"run", "-m", folder.path, "-p", "a", "--stats-json", shard}), 2, "--model");
  EXPECT_REFUSED(expertflow(ids_run({"--predictor", ":x", "--stats-json", own})), 2, "predictor ':x'");
  const std::string cycle = folder.path / "cycle";
  std::filesystem::create_symlink("cycle", cycle);
  EXPECT_REFUSED(expertflow(ids_run({"--stats-json", cycle})), 4, "--stats-json");
  EXPECT_REFUSED(expertflow(ids_run({"--stats-json", folder.path / std::string(250, 'n')})), 4, "too long");
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(expertflow(ids_run({"--device", "cpu", "--stats-json", folder.path / "cpu"})).exit_code, 0);
  const auto through = expertflow(ids_run({"--stats-json", "/dev/fd/1"}));
  EXPECT_TRUE(holds(through.out, "\"prediction_hit_rate\"")) << through.out << through.err;
}

TEST(CliProfile, AnothersFileIsLeftAlone) {
  const TempFolder folder;
  const std::string file = folder.path / "notes.json";
  write_file(file, "{\"mine\": 1}");
  const auto result = expertflow(ids_run({"--expert-memory", "50%", "--warmup", "profile", "--expert-profile", file}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(holds(result.err, "expert profile ignored: " + file)) << result.err;
  EXPECT_EQ(read_text_file(file), "{\"mine\": 1}");
  const std::string one = folder.path / "profiles" / "p.json", two = folder.path / "a" / "b" / "p.json";
  const Arguments half = {"--expert-memory", "50%", "--warmup", "profile", "--expert-profile"};
  EXPECT_EQ(expertflow(ids_run(half + Arguments{one})).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(one));
  EXPECT_EQ(expertflow(ids_run(half + Arguments{"off"})).exit_code, 0);
  EXPECT_REFUSED(expertflow(ids_run(half + Arguments{two})), 2, "expert-profile", "expected a folder");
}

TEST(CliForesight, ValuesOutOfRangeAreRefusedByName) {
  EXPECT_REFUSED(expertflow(ids_run({"--prediction-horizon", "far"})), 2, "prediction-horizon", "far");
  EXPECT_REFUSED(expertflow(ids_run({"--read-ahead", "-1"})), 2, "read-ahead", "-1");
  EXPECT_REFUSED(expertflow(ids_run({"--async-prefetch", "yes"})), 2, "async-prefetch", "yes");
  EXPECT_REFUSED(expertflow(ids_run({"--expert-memory", "50%", "--predictor", "oracle9"})), 2, "oracle9", "gate-ahead");
  EXPECT_REFUSED(expertflow(ids_run({"--warmup", "hot"})), 2, "warmup", "hot");
  EXPECT_REFUSED(expertflow(ids_run({"--io-limit", "40%"})), 2, "io-limit", "40%");
  EXPECT_REFUSED(expertflow(ids_run({"--expert-memory", "50%", "--prediction-topk", "999"})), 2, "prediction-topk");
  EXPECT_REFUSED(expertflow(ids_run({"--expert-memory", "50%", "--layer-wise-config", "{\"layers\": {\"77\": {}}}"})),
                 2, "layer-wise-config", "77");
}

// A prompt of 600 tokens is a step of 512 rows and one of 88; both are looked ahead in, by the caps of their regimes.
TEST(CliForesight, StepsOfManyRowsAreLookedAheadInAndStayTheSame) {
  const TempFolder folder;
  const std::string stats = folder.path / "stats.json";
  std::string ids = "1";
  for (int i = 1; i < 600; ++i) ids += "," + std::to_string(100 + i * 37 % 9000);
  const Arguments run = {"run", "-q",   "-m",     demo(), "--token-ids",     ids,  "-n", "6",
                         "-c",  "1024", "--temp", "0",    "--expert-memory", "40%"};
  const auto plain = expertflow(run + Arguments{"--async-prefetch", "off"});
  const auto ahead = expertflow(run + Arguments{"--async-prefetch", "on", "--stats-json", stats});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(ahead.out, plain.out);
  const json regimes = json::parse(read_text_file(stats))["prefetch"]["regime"]["regimes"];
  EXPECT_EQ(regimes[3]["rows"], 512);
  EXPECT_EQ(regimes[1]["rows"], 88);
  EXPECT_EQ(json::parse(read_text_file(stats))["prefetch"]["governor"]["steps_off"], 0);
}

TEST(CliBenchForesight, ColdAndWarmApart) {
  const auto result = expertflow({"bench", "-q", "-m", demo(), "-r", "2", "--no-peaks", "-p", "0", "-n", "4",
                                  "--expert-memory", "40%", "-t", "2", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json row = json::parse(result.out)["results"][0];
  EXPECT_GT(row["cold"]["tokens_per_second"], 0);
  EXPECT_GT(row["cold"]["bytes_read"], 0);
  EXPECT_TRUE(row["samples"][0]["stall_seconds"].is_number());
  EXPECT_TRUE(row["metrics"]["expert_swap_rate"].is_number());
}

}  // namespace
}  // namespace ef::testing
