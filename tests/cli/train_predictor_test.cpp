// train-predictor and run --predictor through the binary, on a little text.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "expertflow/base/io.h"
#include "tests/cli/cli.h"

namespace ef::testing {
namespace {

using nlohmann::json;

// Forty documents of some sentences each.
std::string text() {
  const char* const nouns[] = {"river", "garden", "teacher", "engine", "letter", "window", "winter"};
  const char* const verbs[] = {"waits for", "remembers", "follows", "repairs", "describes"};
  std::string all;
  for (int d = 0; d < 40; ++d) {
    for (int s = 0; s < 9; ++s)
      all += std::string("The ") + nouns[(d + s) % 7] + " " + verbs[(d * 3 + s) % 5] + " the " +
             nouns[(d + 2 * s) % 7] + ". ";
    all += "\n<|endoftext|>\n";
  }
  return all;
}

const Arguments kRun = {"run", "-m", demo(), "-p", "Once upon a time", "-n", "24", "--temp", "0", "--expert-memory",
                        "40%"};

class CliTrain : public ::testing::Test {
 protected:
  // One training for all tests.
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write_file(folder_->path / "text.txt", text());
    trained_ =
        new ProcessResult(expertflow({"train-predictor", "-m", demo(), "--text", folder_->path / "text.txt", "-o",
                                      file(), "--kinds", "hybrid,pre-attention,low-rank", "--prediction-horizon", "2",
                                      "--max-tokens", "768", "--eval-tokens", "64", "--format", "Q8_0"}));
  }
  static void TearDownTestSuite() {
    delete folder_, delete trained_;
    folder_ = nullptr, trained_ = nullptr;
  }
  static std::string file() { return folder_->path / "little.predictor.gguf"; }
  static TempFolder* folder_;
  static ProcessResult* trained_;
};
TempFolder* CliTrain::folder_ = nullptr;
ProcessResult* CliTrain::trained_ = nullptr;

TEST_F(CliTrain, WritesAFileAndJudgesIt) {
  if (holds(trained_->err, "this build was made without Eigen")) {
    EXPECT_EQ(trained_->exit_code, 2) << trained_->err;
    EXPECT_FALSE(std::filesystem::exists(file()));
    return;
  }
  ASSERT_EQ(trained_->exit_code, 0) << trained_->err;
  EXPECT_TRUE(holds(trained_->err, "heads of ")) << trained_->err;
  for (const char* name : {"gate-ahead", "hybrid", "low-rank", "pre-attention", "previous-token"})
    EXPECT_TRUE(holds(trained_->out, name)) << name << " in: " << trained_->out;
  EXPECT_TRUE(holds(trained_->err, "low-rank: ")) << "numbers of its own: " << trained_->err;
  EXPECT_REFUSED(expertflow({"train-predictor", "-m", demo(), "--text", folder_->path / "text.txt", "-o", file()}), 2,
                 "--force");
}

TEST_F(CliTrain, RunTakesItAndAnswersAsBefore) {
  if (trained_->exit_code != 0) GTEST_SKIP() << trained_->err;
  const auto plain = expertflow(kRun + Arguments{"--read-ahead", "0"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  for (const char* kind : {"", ":low-rank", ":hybrid"}) {
    const std::string stats = folder_->path / "stats.json";
    const auto run = expertflow(kRun + Arguments{"--async-prefetch", "on", "--prediction-horizon", "2", "--predictor",
                                                 file() + kind, "--stats-json", stats});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, plain.out) << kind;
    const json j = json::parse(read_text_file(stats));
    EXPECT_EQ(j["prefetch"]["predictor"], *kind ? std::string(kind + 1) : "trained");
    EXPECT_GT(j["prediction"]["events"].get<int>(), 100) << kind;
    EXPECT_GT(j["calibration"]["bytes_per_second"].get<double>(), 0);
    EXPECT_EQ(j["prefetch"]["regime"]["regimes"].size(), 4u);
  }
}

TEST_F(CliTrain, AnotherModelRefusesIt) {
  if (trained_->exit_code != 0) GTEST_SKIP() << trained_->err;
  EXPECT_REFUSED(expertflow({"run", "-q", "-m", hf("olmoe"), "--token-ids", "1,2,3", "-n", "4", "--expert-memory",
                             "50%", "--predictor", file()}),
                 3, "little.predictor.gguf", "trained on another model");
  EXPECT_REFUSED(expertflow(kRun + Arguments{"-q", "--predictor", file() + ":forest"}), 2, "forest", "holds none");
}

TEST(CliTrainFlags, MistakesAreRefusedByName) {
  const TempFolder folder;
  const std::string out = folder.path / "p.gguf", words = folder.path / "text.txt";
  write_file(words, text());
  EXPECT_REFUSED(expertflow({"train-predictor", "-m", demo(), "-o", out}), 2, "--text");
  EXPECT_REFUSED(expertflow({"train-predictor", "-m", demo(), "--text", words}), 2, "--output");
  EXPECT_REFUSED(
      expertflow({"train-predictor", "-m", demo(), "--text", words, "-o", out, "--kinds", "low-rank,oracle"}), 2,
      "--kinds", "oracle");
  EXPECT_REFUSED(expertflow({"train-predictor", "-m", demo(), "--text", words, "-o", out, "--max-tokens", "3"}), 2,
                 "--max-tokens");
  EXPECT_REFUSED(expertflow({"train-predictor", "-m", demo(), "--text", words, "-o", out, "--kinds", ""}), 2,
                 "--kinds");
  EXPECT_REFUSED(expertflow({"train-predictor", "-m", "/nowhere", "--text", words, "-o", "/nowhere/p.gguf"}), 4,
                 "--output");
  write_file(words, "short");
  EXPECT_REFUSED(expertflow({"train-predictor", "-m", demo(), "--text", words, "-o", out}), 2, "200 characters");
  EXPECT_REFUSED(
      expertflow({"run", "-q", "-m", hf("olmoe"), "--token-ids", "1", "-n", "1", "--bandwidth-calibration", "hourly"}),
      2, "bandwidth-calibration", "hourly");
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace ef::testing
