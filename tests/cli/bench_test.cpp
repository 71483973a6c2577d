// bench through the binary: outputs parse, figures agree with each other, nonsense is refused. No figure is judged.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

using nlohmann::json;

const Arguments kShort = {"bench", "-q", "-m", demo(), "-r", "2", "--no-peaks"};

json bench_json(const Arguments& arguments) {
  const auto result = expertflow(arguments + Arguments{"-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out, nullptr, false);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(CliBench, JsonHoldsEverySample) {
  const json j = bench_json(
      kShort + Arguments{"-t", "2", "-p", "16", "-n", "4", "-pg", "8,2", "-d", "0,8", "--expert-memory", "100%"});
  ASSERT_TRUE(j.is_object());
  for (const char* key : {"cpu", "processors", "memory_bytes", "kernel", "instruction_sets"})
    EXPECT_TRUE(j["machine"].contains(key)) << key;
  EXPECT_NE(j["commit"], "");
  EXPECT_TRUE(holds(j["command"], " -pg 8,2 ") || holds(j["command"], " --pg 8,2 ")) << j["command"];
  EXPECT_EQ(j["model"]["architecture"], "qwen3_moe");
  std::vector<std::string> names;
  for (const json& r : j["results"]) names.push_back(r["test"]);
  EXPECT_EQ(names, (std::vector<std::string>{"pp16", "tg4", "pp8+tg2", "pp16 @ d8", "tg4 @ d8", "pp8+tg2 @ d8"}));
  // Two repetitions and the warm-up of the longest test: 8 + 16 tokens.
  EXPECT_EQ(j["token_stream"].size(), 3u * 24);
  for (const json& r : j["results"]) {
    const double tokens = r["n_prompt"].get<double>() + r["n_gen"].get<double>();
    ASSERT_EQ(r["samples"].size(), 2u);
    double rates = 0, bytes = 0;
    for (const json& s : r["samples"]) {
      EXPECT_EQ(s["seconds"], s["prompt_seconds"].get<double>() + s["decode_seconds"].get<double>());
      rates += tokens / s["seconds"].get<double>() / 2;
      bytes += s["weight_bytes"].get<double>() / 2;
    }
    const json& rate = r["tokens_per_second"];
    EXPECT_NEAR(rate["mean"], rates, 1e-9 * rates);
    EXPECT_LE(rate["min"], rate["median"]);
    EXPECT_LE(rate["median"], rate["max"]);
    EXPECT_NEAR(r["weight_bytes_per_token"], bytes / tokens, 1);
    EXPECT_NEAR(r["memory_gb_s"], bytes / tokens * rates / 1e9, 1e-6 * rates);
    EXPECT_EQ(r["bound"]["by"], "none");
    EXPECT_EQ(r["peaks"]["memory_read_gb_s"], nullptr);
    EXPECT_EQ(r["threads"], 2);
  }
}

TEST(CliBench, BoundsComeFromThePeaksOfTheRun) {
  const json j = bench_json({"bench", "-q", "-m", demo(), "-t", "2", "-r", "1", "-p", "16", "-n", "4",
                             "--expert-memory", "40%", "--peak-bytes", "16MiB"});
  ASSERT_TRUE(j.is_object());
  for (const json& r : j["results"]) {
    const double memory = r["peaks"]["memory_read_gb_s"];
    EXPECT_GT(memory, 0);
    const double tokens = r["n_prompt"].get<double>() + r["n_gen"].get<double>();
    const double seconds = r["weight_bytes_per_token"].get<double>() * tokens / memory / 1e9;
    EXPECT_NEAR(r["bound"]["memory_seconds"], seconds, 1e-6 * seconds);
    const double bound = r["bound"]["tokens_per_second"], mean = r["tokens_per_second"]["mean"];
    EXPECT_NEAR(r["bound"]["share"], mean / bound, 1e-6 * mean / bound);
    EXPECT_GE(r["bound"]["memory_seconds"].get<double>() * (1 + 1e-9) * bound, bound / 1e9);
  }
}

// Lists of sequences make tests of their own where tokens are decoded.
TEST(CliBench, SequencesSideBySide) {
  const json j = bench_json(kShort + Arguments{"-p", "8", "-n", "4", "-pg", "4,2", "-np", "1,3"});
  ASSERT_TRUE(j.is_object());
  std::vector<std::string> names;
  for (const json& r : j["results"]) names.push_back(r["test"]);
  EXPECT_EQ(names, (std::vector<std::string>{"pp8", "tg4", "tg4 x 3", "pp4+tg2", "pp4+tg2 x 3"}));
  const json& three = j["results"][2];
  EXPECT_EQ(three["sequences"], 3);
  EXPECT_EQ(three["device"], "cpu");
  const double seconds = three["samples"][0]["seconds"], rate = three["tokens_per_second"]["max"];
  EXPECT_GE(rate * (1 + 1e-9), 12 / seconds);
  EXPECT_EQ(j["token_stream"].size(), 3u * 3 * 6);
}

TEST(CliBench, TheSameOnceMoreOnStderr) {
  const auto result = expertflow(kShort + Arguments{"-p", "4", "-n", "0", "-o", "md", "-oe", "csv"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(holds(result.out, "| pp4 |"));
  const auto rows = lines_of(result.err);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(holds(rows[0], "test,n_prompt,"));
  EXPECT_TRUE(holds(rows[1], "pp4,4,"));
}

// The same seed gives the same tokens, another seed others; a text gives its own.
TEST(CliBench, TokensAreTheSameEveryTime) {
  const Arguments one = kShort + Arguments{"-p", "8", "-n", "0"};
  const json a = bench_json(one)["token_stream"];
  EXPECT_EQ(a, bench_json(one)["token_stream"]);
  EXPECT_NE(a, bench_json(one + Arguments{"-s", "2"})["token_stream"]);
  const TempFolder folder;
  write_file(folder.path / "text", "Once upon a time there was a bear.");
  const json text = bench_json(one + Arguments{"--text", folder.path / "text"})["token_stream"];
  ASSERT_EQ(text.size(), 24u);
  // 34 letters are fewer than 24 tokens: it goes round.
  bool round = false;
  for (size_t i = 1; i < 20; ++i) round = round || (text[i] == text[0] && text[i + 1] == text[1]);
  EXPECT_TRUE(round);
}

TEST(CliBench, TablesHaveOneRowATest) {
  const Arguments tests = kShort + Arguments{"-p", "4", "-n", "1", "-t", "1,2", "--isa", "reference,auto"};
  const auto csv = expertflow(tests + Arguments{"-o", "csv"});
  EXPECT_EQ(csv.exit_code, 0) << csv.err;
  const auto rows = lines_of(csv.out);
  ASSERT_EQ(rows.size(), 1u + 2 * 2 * 2);
  for (const std::string& row : rows)
    EXPECT_EQ(std::count(row.begin(), row.end(), ','), std::count(rows[0].begin(), rows[0].end(), ',')) << row;
  const auto md = expertflow(tests);
  EXPECT_EQ(md.exit_code, 0) << md.err;
  int table = 0;
  int64_t bars = -1;
  for (const std::string& line : lines_of(md.out)) {
    if (line.empty() || line[0] != '|') continue;
    ++table;
    const int64_t here = std::count(line.begin(), line.end(), '|');
    EXPECT_EQ(here, bars < 0 ? here : bars) << line;
    bars = here;
  }
  EXPECT_EQ(table, 2 + 2 * 2 * 2);
}

TEST(CliBench, RefusesWhatItCannotDo) {
  EXPECT_REFUSED(expertflow(kShort + Arguments{"--frobnicate"}), 2, "--frobnicate");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-c", "64"}), 2, "-c");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-p", "5,x"}), 2, "--n-prompt", "\"x\"");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-p", "5,,6"}), 2, "--n-prompt");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-p", "0", "-n", "0"}), 2, "nothing to run");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-pg", "5"}), 2, "--pg", "512,128");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-o", "yaml"}), 2, "--output", "yaml");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-oe", "yaml"}), 2, "--output-err", "yaml");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-np", "0"}), 2, "--parallel", "found 0");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"-n", "1", "--profile"}), 2, "profile", "--device cuda");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"--device", "cuda", "--isa", "avx2"}), 2, "--isa", "cuda");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"--device", "tpu"}), 2, "device", "cuda:N");
  EXPECT_REFUSED(expertflow(kShort + Arguments{"--isa", "mmx"}), 2, "mmx");
  EXPECT_REFUSED(expertflow({"bench", "-m", demo(), "-r", "0"}), 2, "--repetitions");
  EXPECT_REFUSED(expertflow({"bench"}), 2, "--model");
  EXPECT_REFUSED(expertflow({"bench", "-m", hf("qwen3_moe"), "-q", "--text", demo()}), 3, "tokenizer");
}

}  // namespace
}  // namespace ef::testing
