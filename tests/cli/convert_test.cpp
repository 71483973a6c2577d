// Rewriting checkpoints through the binary: convert, quantize, pull.
#include <gtest/gtest.h>

#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

std::string greedy(const std::string& model, const GoldenCase& golden) {
  return expertflow({"run", "-q", "-m", model, "--token-ids", ids_text(golden.ids), "-n", "24", "--temp", "0", "-ctk",
                     "f32", "-ctv", "f32", "--expert-memory", "50%"})
      .out;
}

TEST(CliConvert, ThereAndBackWithTheSameTokens) {
  const TempFolder folder;
  const std::string file = folder.path / "model.gguf", back = folder.path / "back";
  const auto there = expertflow({"convert", hf("granitemoe"), file});
  ASSERT_EQ(there.exit_code, 0) << there.err;
  EXPECT_TRUE(there.out.starts_with(file + ": GGUF, ")) << there.out;
  EXPECT_TRUE(holds(there.err, "converting 100 %")) << there.err;
  EXPECT_TRUE(holds(there.err, "no tokenizer")) << there.err;
  const auto again = expertflow({"convert", "-q", file, back, "--type", "bf16"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const GoldenCase golden = read_golden(hf("granitemoe") + "/golden.safetensors")[1];
  EXPECT_EQ(greedy(file, golden), ids_text(golden.greedy) + "\n");
  EXPECT_EQ(greedy(back, golden), ids_text(golden.greedy) + "\n");
}

TEST(CliConvert, Refusals) {
  const TempFolder folder;
  const std::string out = folder.path / "out.gguf";
  EXPECT_REFUSED(expertflow({"convert", "-q", hf("mixtral-rope-dynamic"), out}), 3, "dynamic");
  EXPECT_REFUSED(expertflow({"convert", "-q", hf("mixtral"), out, "--type", "q8_0"}), 2, "--type", "quantize");
  EXPECT_REFUSED(expertflow({"convert", "-q", hf("mixtral"), folder.path / "out"}), 2, ".gguf");
  EXPECT_REFUSED(expertflow({"convert", "-q", "/nowhere", out}), 3, "/nowhere");
  EXPECT_REFUSED(expertflow({"convert", "-q", hf("mixtral")}), 2, "OUT");
  for (const char* verb : {"convert", "quantize"})
    EXPECT_REFUSED(expertflow({verb, "-q", hf("mixtral"), out, "--type", verb[0] == 'c' ? "f16" : "q8_0", "-t", "-3"}),
                   2, "--threads", "-3");
  EXPECT_TRUE(fs::is_empty(folder.path));
}

TEST(CliQuantize, SummaryAndTokens) {
  const TempFolder folder;
  const std::string out = folder.path / "out.gguf";
  const auto result = expertflow({"quantize", "-q", hf("mixtral"), out, "--type", "q6_k", "--tensors"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"BF16 -> Q8_0: ", "BF16 -> F32: ", "rms error", "blk.2.ffn_down_exps.weight",
                           "fallback: blk.0.attn_q.weight: rows of 64 are no multiple of Q6_K's 256: Q8_0"})
    EXPECT_TRUE(holds(result.out, part)) << part << " in: " << result.out;
  EXPECT_TRUE(holds(result.out, out + ": ")) << result.out;
  // Eight bits keep the first tokens of a sharp model.
  const GoldenCase golden = read_golden(hf("mixtral") + "/golden.safetensors")[1];
  const std::string tokens = greedy(out, golden), wanted = ids_text(golden.greedy);
  EXPECT_EQ(tokens.substr(0, tokens.find(',')), wanted.substr(0, wanted.find(',')));
}

TEST(CliQuantize, Refusals) {
  const TempFolder folder;
  const std::string out = folder.path / "out.gguf";
  EXPECT_REFUSED(expertflow({"quantize", "-q", demo(), out, "--type", "q4_0"}), 2, "--allow-requantize");
  EXPECT_REFUSED(expertflow({"quantize", "-q", hf("mixtral"), out, "--type", "q7"}), 2, "q4_k_m", "q7");
  EXPECT_REFUSED(expertflow({"quantize", "-q", hf("mixtral"), out}), 2, "--type");
  EXPECT_REFUSED(expertflow({"quantize", "-q", hf("mixtral"), out, "--type", "q8_0", "--output-type", "x"}), 2,
                 "--output-type");
  EXPECT_TRUE(fs::is_empty(folder.path));
}

// What is fetched, and how, is tests/hub's; here that the verb is wired.
TEST(CliPull, Refusals) {
  EXPECT_REFUSED(expertflow({"pull", "-q", "no-slash"}), 2, "error: ");
  EXPECT_REFUSED(expertflow({"pull", "-q"}), 2, "ADDRESS");
}

}  // namespace
}  // namespace ef::testing
