// inspect, verify, perplexity and widen through the binary.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "expertflow/engine/model_files.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/engine/text_model.h"
#include "tests/cli/cli.h"
#include "tests/support/golden_check.h"

namespace ef::testing {
namespace {

using nlohmann::json;

json inspected(const Arguments& arguments) {
  const auto result = expertflow(Arguments{"inspect", "--json"} + arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out, nullptr, false);
}

TEST(CliInspect, EveryFixture) {
  for (const Fixture& fixture : all_fixtures()) {
    const json j = inspected({"-m", fixture.model});
    ASSERT_TRUE(j.is_object()) << fixture.name;
    EXPECT_EQ(j["vocabulary"], 256) << fixture.name;
    EXPECT_EQ(j["tokenizer"], false) << fixture.name;
    EXPECT_EQ(j["attention"], fixture.name.find("deepseek") != std::string::npos ? "latent" : "grouped-query");
    const auto text = expertflow({"inspect", "-m", fixture.model});
    EXPECT_EQ(text.exit_code, 0) << fixture.name << ": " << text.err;
  }
}

// Numbers of models/demo/README.md, and bytes counted from them by hand.
TEST(CliInspect, TheBundledModel) {
  const json j = inspected({"-m", demo(), "-c", "1024", "--expert-memory", "40%", "--tensors"});
  const json expected = {
      {"architecture", "qwen3_moe"}, {"layers", 12},      {"moe_layers", 12},       {"hidden", 256},
      {"vocabulary", 16384},         {"heads", 4},        {"kv_heads", 2},          {"head_dim", 64},
      {"context_length", 2048},      {"experts", 32},     {"experts_per_token", 4}, {"expert_width", 128},
      {"renormalised", true},        {"tokenizer", true}, {"chat_template", true},  {"file_kind", "GGUF"}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(j[key], value) << key;
  // Keys and values of 1,024 tokens: 12 layers x 2 heads x 64 numbers x 2 bytes, twice.
  EXPECT_EQ(j["kv_bytes_at_context"], 1024 * 12 * 2 * 64 * 2 * 2);
  // Every tensor's bytes by its format's block: the list, the sum, and the sums by format agree.
  const std::map<std::string, std::pair<int, int>> blocks = {
      {"F32", {1, 4}},      {"Q8_0", {32, 34}}, {"Q5_0", {32, 22}}, {"Q5_1", {32, 24}},  {"Q5_K", {256, 176}},
      {"Q6_K", {256, 210}}, {"F16", {1, 2}},    {"BF16", {1, 2}},   {"Q4_K", {256, 144}}};
  int64_t sum = 0, experts = 0;
  std::map<std::string, int64_t> by_format;
  for (const json& t : j["tensors"]) {
    int64_t elements = 1;
    for (const int64_t n : t["shape"]) elements *= n;
    const auto [block, bytes] = blocks.at(t["format"]);
    EXPECT_EQ(t["bytes"], elements / block * bytes) << t["name"];
    sum += elements / block * bytes;
    by_format[t["format"]] += elements / block * bytes;
    if (holds(t["name"], "_exps.")) experts += elements / block * bytes;
  }
  EXPECT_GT(experts, 20 << 20);
  EXPECT_EQ(j["file_bytes"], sum);
  for (const auto& [format, bytes] : by_format) EXPECT_EQ(j["formats"][format], bytes) << format;
  EXPECT_EQ(j["expert_bytes"], experts);
  EXPECT_EQ(j["expert_bytes_per_token"], experts / 32 * 4);
  // What fits: never more than the bytes allow, all of them at 100 %.
  const json& budgets = j["budgets"];
  ASSERT_EQ(budgets.size(), 5u);
  EXPECT_EQ(budgets[3]["experts_that_fit"], 384);
  EXPECT_EQ(budgets[4]["budget"], "40%");
  for (const json& b : budgets) {
    EXPECT_EQ(b["of"], 384);
    EXPECT_EQ(b["works"], true);
    EXPECT_LE(b["experts_that_fit"].get<int64_t>() * (experts / 384), b["bytes"].get<int64_t>());
  }
  EXPECT_GT(budgets[4]["experts_that_fit"].get<int>(), 384 * 30 / 100);
}

TEST(CliInspect, TextSaysTheSame) {
  const auto result = expertflow({"inspect", "-m", demo(), "--expert-memory", "12MiB", "--tensors"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"qwen3_moe: 12 layers (12 MoE), hidden 256, vocabulary 16384, context 2048", "4 heads, 2 key/value heads of 64",
        "32 a layer, top-4, width 128, shared width 0; router softmax, renormalised",
        "tokenizer yes, chat template yes", "12MiB", "of 384 experts", "blk.11.ffn_down_exps.weight"})
    EXPECT_TRUE(holds(result.out, part)) << part << " in: " << result.out;
}

TEST(CliInspect, F11_BudgetsThatCannotWork) {
  EXPECT_REFUSED(expertflow({"inspect", "-m", demo(), "--expert-memory", "1KiB"}), 2, "1024 bytes are too few");
  EXPECT_REFUSED(expertflow({"inspect", "-m", demo(), "--expert-memory", "x"}), 2, "'x'");
}

TEST(CliVerify, OneFixtureOfEachFamily) {
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss",
                           "phimoe", "granitemoe", "glm4_moe"}) {
    const auto result = expertflow({"verify", "-q", "-m", hf(name), "-n", "4"});
    EXPECT_EQ(result.exit_code, 0) << name << ": " << result.out << result.err;
    EXPECT_EQ(result.err, "");
    std::istringstream lines(result.out);
    int checks = 0;
    std::string line, last;
    for (; std::getline(lines, line); last = line) checks += line.starts_with("ok   ");
    EXPECT_EQ(checks, 14) << result.out;  // eight ways to run, five predictors, and the reference ops
    EXPECT_EQ(last, "verified: 14 of 14 checks passed");
    EXPECT_TRUE(holds(result.out, "16/16 tokens equal, largest logit difference 0,")) << result.out;
  }
  const auto no_reference = expertflow({"verify", "-q", "-m", gguf("mixtral"), "-n", "2", "--no-reference"});
  EXPECT_TRUE(holds(no_reference.out, "verified: 13 of 13 checks passed")) << no_reference.out;
}

// Against cross entropies computed here, in double, from logits of another route: one token a step, experts resident.
TEST(CliPerplexity, TheBundledModelOnAShortText) {
  std::ifstream in(std::string(EF_SOURCE_DIR) + "/models/demo/README.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const TempFolder folder;
  write_file(folder.path / "text", text);
  constexpr int kWindow = 48, kWindows = 2;
  const auto result = expertflow({"perplexity", "-q", "-m", demo(), "-f", folder.path / "text", "--chunk", "48",
                                  "--chunks", "2", "--expert-memory", "40%"});
  EXPECT_EQ(result.exit_code, 0) << result.err;

  EngineOptions o;
  o.all_resident = true;
  o.ctx_size = kWindow;
  const Log quiet(LogLevel::kOff, nullptr);
  Engine engine(open_model(demo()), o, quiet);
  const auto ids = load_tokenizer(engine.files().checkpoint)->encode(text);
  ASSERT_GE(ids.size(), size_t(kWindow * kWindows));
  double sum = 0;
  int scored = 0;
  for (int w = 0; w < kWindows; ++w) {
    Sequence sequence(engine, kWindow);
    for (int i = 0; i + 1 < kWindow; ++i) {
      const auto logits = sequence.feed(std::span(ids).subspan(size_t(w * kWindow + i), 1));
      if (i < kWindow / 2) continue;
      double total = 0;
      for (const float l : logits) total += std::exp(double(l));
      sum += std::log(total) - double(logits[size_t(ids[size_t(w * kWindow + i + 1)])]);
      ++scored;
    }
  }
  EXPECT_EQ(scored, 2 * 23);
  const double mean = sum / scored;
  EXPECT_TRUE(result.out.starts_with(fmt::format("perplexity {:.4f} +/- ", std::exp(mean)))) << result.out;
  EXPECT_TRUE(holds(result.out, fmt::format("cross entropy {:.5f}, 46 tokens in 2 windows of 48\n", mean)))
      << result.out;
}

TEST(CliPerplexity, Refusals) {
  const TempFolder folder;
  write_file(folder.path / "text", "too short");
  const Arguments run = {"perplexity", "-q", "-m", demo(), "-f", folder.path / "text"};
  EXPECT_REFUSED(expertflow(run), 5, "512 tokens");
  EXPECT_REFUSED(expertflow(run + Arguments{"--chunk", "4", "-c", "3"}), 2, "context of 3");
  EXPECT_REFUSED(expertflow(run + Arguments{"--chunk", "4", "--first-scored", "4"}), 2, "first scored");
  EXPECT_REFUSED(expertflow(run + Arguments{"--documents", "no such token"}), 2, "--documents", "no such token");
  EXPECT_REFUSED(expertflow({"perplexity", "-q", "-m", hf("mixtral"), "-f", folder.path / "text"}), 3, "tokenizer");
}

TEST(CliWiden, AWiderFixtureGivesTheSameTokens) {
  const TempFolder folder;
  for (const std::string name : {"mixtral", "deepseek_v3"})
    for (const bool file : {false, true}) {
      const std::string from = file ? gguf(name) : hf(name);
      const std::string to = folder.path / (name + (file ? "-wide.gguf" : "-wide"));
      const auto widened = expertflow({"widen", "-q", from, to, "2", "2"});
      ASSERT_EQ(widened.exit_code, 0) << widened.err;
      EXPECT_TRUE(widened.out.starts_with(to + ": hidden 128, ")) << widened.out;
      const auto golden = read_golden(hf(name) + "/golden.safetensors")[1];
      const auto result = expertflow({"run", "-q", "-m", to, "--token-ids", ids_text(golden.ids), "-n", "24", "--temp",
                                      "0", "-ctk", "f32", "-ctv", "f32", "--expert-memory", "50%"});
      EXPECT_EQ(result.out, ids_text(golden.greedy) + "\n") << to << result.err;
    }
}

TEST(CliWiden, Refusals) {
  const TempFolder folder;
  const std::string out = folder.path / "out";
  EXPECT_REFUSED(expertflow({"widen", hf("mixtral"), out, "0", "2"}), 2, "0");
  EXPECT_REFUSED(expertflow({"widen", hf("mixtral"), out, "2", "-1"}), 2, "-1");
  EXPECT_REFUSED(expertflow({"widen", hf("mixtral"), out, "two", "2"}), 2, "two");
  EXPECT_REFUSED(expertflow({"widen", hf("mixtral"), out}), 2, "a");
  EXPECT_FALSE(std::filesystem::exists(out));
  const std::string copy = folder.path / "copy.gguf";
  std::filesystem::copy_file(gguf("mixtral"), copy);
  const auto size = std::filesystem::file_size(copy);
  EXPECT_NE(expertflow({"widen", "-q", copy, copy, "2", "2"}).exit_code, 0);
  EXPECT_EQ(std::filesystem::file_size(copy), size);
}

}  // namespace
}  // namespace ef::testing
