// Files of trained predictors: what was written comes back, and nothing that is damaged or of another model is
// believed.
#include "expertflow/engine/predictor_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "expertflow/base/errors.h"
#include "expertflow/engine/fingerprint.h"
#include "expertflow/engine/recall.h"
#include "expertflow/engine/train_predictor.h"
#include "expertflow/weights/gguf.h"
#include "tests/engine/model_rig.h"
#include "tests/predict/trained_rig.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

template <class Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

class PredictorFile : public ::testing::Test {
 protected:
  TrainedPredictor trained_for(const ModelFiles& files) {
    TrainedPredictor t = made_up(files.config, 2, 0.5f);
    t.fingerprint = model_fingerprint(files);
    return t;
  }
  TempFolder folder_;
  const fs::path file_ = folder_.path / "p.gguf";
};

TEST_F(PredictorFile, ComesBackAsItWas) {
  const auto files = open_model(hf_fixture("olmoe"));
  const TrainedPredictor written = trained_for(*files);
  write_predictor(written, Format::kF32, "CC0-1.0", file_);
  const TrainedPredictor read = read_predictor(file_);
  EXPECT_EQ(read.fingerprint, written.fingerprint);
  EXPECT_EQ(read.layers, written.layers);
  EXPECT_EQ(read.hidden, written.hidden);
  EXPECT_EQ(read.experts, written.experts);
  EXPECT_EQ(read.top_k, written.top_k);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (const auto& [name, tensor] : written.tensors) {
    EXPECT_EQ(read.at(name, tensor.rows, tensor.cols).values, tensor.values) << name;
  }
  const PredictorChoice choice = choose_predictor(file_.string(), *files);
  EXPECT_EQ(choice.name, "trained");
  EXPECT_EQ(choose_predictor(file_.string() + ":linear", *files).name, "linear");
  EXPECT_EQ(choose_predictor("gate-ahead", *files).trained, nullptr);
}

// Of the first two layers no router says anything before their attention.
TEST_F(PredictorFile, HeadsThatStandAloneHaveEightBits) {
  const auto files = open_model(hf_fixture("olmoe"));
  write_predictor(trained_for(*files), Format::kQ4_0, "", file_);
  TensorDirectory directory;
  read_gguf_header(std::make_shared<FileSource>(file_), directory);
  int eight = 0, four = 0;
  for (const TensorInfo& tensor : directory.tensors()) {
    if (tensor.format == Format::kF32 || tensor.format == Format::kF16) continue;  // vectors, and what no block fits
    const bool alone = tensor.name.starts_with("pre-attention.0.0.") || tensor.name.starts_with("pre-attention.1.1.");
    EXPECT_EQ(tensor.format, alone ? Format::kQ8_0 : Format::kQ4_0) << tensor.name;
    ++(alone ? eight : four);
  }
  EXPECT_GT(eight, 0);
  EXPECT_GT(four, 0);
}

TEST_F(PredictorFile, AnotherModelsIsRefused) {
  const auto files = open_model(hf_fixture("olmoe"));
  TrainedPredictor t = trained_for(*files);
  t.fingerprint = "00000000deadbeef";
  write_predictor(t, Format::kF16, "", file_);
  const std::string told = message_of<ModelError>([&] { choose_predictor(file_.string(), *files); });
  EXPECT_NE(told.find("trained on another model"), std::string::npos) << told;
  EXPECT_NE(told.find("00000000deadbeef"), std::string::npos) << told;
  EXPECT_NE(told.find(model_fingerprint(*files)), std::string::npos) << told;
  const auto other = open_model(hf_fixture("mixtral"));
  EXPECT_NE(message_of<ModelError>([&] { choose_predictor(file_.string(), *other); }).find("trained on another model"),
            std::string::npos);
}

TEST_F(PredictorFile, DamageIsFound) {
  const auto files = open_model(hf_fixture("olmoe"));
  write_predictor(trained_for(*files), Format::kF16, "", file_);
  std::string bytes = read_text_file(file_);
  const auto told_of = [&](const std::string& content) {
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << content;
    return message_of<ModelError>([&] { read_predictor(file_); });
  };
  std::string flipped = bytes;
  flipped[flipped.size() - 100] = char(flipped[flipped.size() - 100] ^ 0x01);
  EXPECT_NE(told_of(flipped).find("damaged"), std::string::npos);
  EXPECT_NE(told_of(bytes.substr(0, bytes.size() / 2)).find("p.gguf"), std::string::npos);
  EXPECT_NE(told_of("no GGUF at all").find("p.gguf"), std::string::npos);
  std::string version = bytes;
  const size_t at = version.find("expertflow.predictor.version");
  ASSERT_NE(at, std::string::npos);
  version[at + std::string("expertflow.predictor.version").size() + 4] = 9;
  EXPECT_NE(told_of(version).find("version: expected 1, found 9"), std::string::npos);
  EXPECT_EQ(told_of(bytes), "no error");
}

TEST_F(PredictorFile, AModelIsNoPredictorAndNamesAreChecked) {
  const auto files = open_model(hf_fixture("olmoe"));
  const fs::path model = fs::path(EF_SOURCE_DIR) / "models/demo/demo-Q5_K_M.gguf";
  EXPECT_NE(message_of<ModelError>([&] { read_predictor(model); }).find("expected a predictor"), std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] { choose_predictor("crystal-ball", *files); }).find("gate-ahead"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] { choose_predictor("hybrid", *files); }).find("FILE:hybrid"),
            std::string::npos);
}

TEST_F(PredictorFile, WhatIsAskedForIsCheckedWhereEveryExpertFits) {
  EngineOptions options = small_engine("100%");
  options.predictor = "crystal-ball";
  EXPECT_NE(message_of<ConfigError>([&] { engine_of("olmoe", options); }).find("gate-ahead"), std::string::npos);
  write_predictor(trained_for(*open_model(hf_fixture("olmoe"))), Format::kF32, "", file_);
  options.predictor = file_.string() + ":nope";
  EXPECT_NE(message_of<ConfigError>([&] { engine_of("olmoe", options); }).find("kind 'nope'"), std::string::npos);
}

// y = 0.3 exp(-0.5 t) + 0.6, exactly.
TEST(DecayFit, FindsTheCurve) {
  std::vector<double> t, y;
  for (int i = 1; i <= 11; ++i) t.push_back(i), y.push_back(0.3 * std::exp(-0.5 * i) + 0.6);
  const DecayFit fit = fit_decay(t, y);
  EXPECT_NEAR(fit.a, 0.3, 1e-6);
  EXPECT_NEAR(fit.b, 0.5, 1e-6);
  EXPECT_NEAR(fit.c, 0.6, 1e-6);
  EXPECT_LT(fit.worst, 1e-9);
}

// Three layers, two of the experts chosen. At distances 1 and 2: hybrid 0.5 and none (it does not reach so far), forest
// 0.25 and 0.5, what is trained as the hybrid and 0.25 beyond it; on a second text all the same.
TEST(BestPredictor, CountsWhatIsNotCoveredAsNothing) {
  const auto table = [](const char* name, uint64_t near, std::optional<uint64_t> far) {
    RecallTable t(name, 3, 2);
    for (const LayerId layer : {0, 1}) t.at(StepPoint::kRouted, layer, layer + 1) = {.cases = 4, .hits_k = near};
    if (far) t.at(StepPoint::kRouted, 0, 2) = {.cases = 4, .hits_k = *far};
    return t;
  };
  std::vector<RecallTable> of_text = {table("hybrid", 4, std::nullopt), table("forest", 2, 4), table("trained", 4, 2)};
  EXPECT_EQ(best_predictor({of_text, of_text}, 1).name, "trained") << "as good as the hybrid, and holds it";
  EXPECT_DOUBLE_EQ(best_predictor({of_text, of_text}, 1).recall, 0.5);
  EXPECT_EQ(best_predictor({of_text, of_text}, 2).name, "trained");
  EXPECT_DOUBLE_EQ(best_predictor({of_text, of_text}, 2).recall, 0.375);
  of_text[1] = table("forest", 3, 4);
  EXPECT_EQ(best_predictor({of_text}, 2).name, "forest");
  EXPECT_DOUBLE_EQ(best_predictor({of_text}, 2).recall, 0.4375);
}

}  // namespace
}  // namespace ef::testing
