// Random checkpoints are whole models of their shapes: bound from their headers alone, and a small one run.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "bench/gpu/random_checkpoint.h"
#include "expertflow/base/errors.h"
#include "tests/engine/model_rig.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

// As a reader of the file would see it; no tensor has bytes.
Checkpoint as_planned(const RandomPlan& plan) {
  static const std::vector<std::byte> none;
  Checkpoint out;
  out.kind = Checkpoint::Kind::kGguf;
  out.path = out.gguf.metadata.file = "planned";
  out.gguf.metadata.values = plan.metadata.values;
  std::vector<TensorInfo> tensors;
  for (const RandomTensor& t : plan.tensors) {
    TensorInfo info;
    info.name = t.name, info.format = t.format, info.shape = t.shape, info.bytes = t.bytes();
    tensors.push_back(std::move(info));
  }
  out.directory.add_file(std::make_shared<MemorySource>("planned", none), std::move(tensors));
  return out;
}

RandomOptions options_of(const std::string& shape, const std::string& type = "q4_k_s") {
  RandomOptions o;
  o.shape = shape, o.type = type, o.threads = 2;
  return o;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(RandomCheckpoints, AreWholeModelsInEveryShape) {
  for (const RandomShape& shape : random_shapes())
    for (const char* type : {"q4_k_s", "q4_k_m", "q8_0", "bf16", "mxfp4"}) {
      SCOPED_TRACE(fmt::format("{} in {}", shape.name, type));
      const RandomPlan plan = plan_random(options_of(std::string(shape.name), type));
      EXPECT_EQ(plan.layers, plan.all_layers);
      const auto files = model_of(as_planned(plan));
      const auto json = nlohmann::json::parse(shape.config);
      EXPECT_EQ(files->arch->name, json.at("model_type").get<std::string>());
      EXPECT_EQ(files->config.hidden, json.at("hidden_size"));
      EXPECT_EQ(files->config.layers.size(), json.at("num_hidden_layers"));
    }
}

TEST(RandomCheckpoints, QwenHasTheSizeThatItsNameSays) {
  RandomOptions o = options_of("qwen3-30b-a3b");
  o.output_type = "q4_k";
  const RandomPlan plan = plan_random(o);
  int64_t numbers = 0;
  for (const RandomTensor& t : plan.tensors) numbers += t.rows() * t.cols();
  EXPECT_EQ(numbers, 30532122624);
  EXPECT_NEAR(double(plan.bytes()), 17.2e9, 0.1e9);
  const auto files = model_of(as_planned(plan));
  EXPECT_EQ(files->config.rope.theta, 1e6);
  EXPECT_EQ(files->config.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(files->config.head_dim, 128);
  EXPECT_TRUE(files->config.router.renormalise);
}

TEST(RandomCheckpoints, HaveAsManyLayersAsAreAllowed) {
  RandomOptions o = options_of("qwen3-30b-a3b", "bf16");
  const uint64_t all = plan_random(o).bytes();
  o.at_most = all;
  EXPECT_EQ(plan_random(o).layers, 48);
  o.at_most = all / 2;
  const RandomPlan half = plan_random(o);
  EXPECT_LE(half.bytes(), o.at_most);
  o.layers = half.layers + 1, o.at_most = 0;
  EXPECT_GT(plan_random(o).bytes(), all / 2);
  o.at_most = 1 << 20;
  EXPECT_THROW(plan_random(o), ConfigError);
}

TEST(RandomCheckpoints, RunAndAreTheSameEveryTime) {
  const TempFolder folder;
  for (const char* type : {"q4_k_s", "q8_0", "bf16", "mxfp4"}) {
    SCOPED_TRACE(type);
    RandomOptions o = options_of("tiny", type);
    const RandomPlan plan = plan_random(o);
    write_random(plan, o, folder.path / "a.gguf");
    o.threads = 1;
    write_random(plan, o, folder.path / "b.gguf");
    EXPECT_EQ(bytes_of(folder.path / "a.gguf"), bytes_of(folder.path / "b.gguf"));
    o.seed = 2;
    write_random(plan, o, folder.path / "b.gguf");
    EXPECT_NE(bytes_of(folder.path / "a.gguf"), bytes_of(folder.path / "b.gguf"));

    const auto engine = engine_of(open_model(folder.path / "a.gguf"), small_engine());
    Sequence sequence(*engine, 16);
    const std::vector<TokenId> prompt = {1, 2, 3, 500};
    const auto logits = sequence.feed(prompt);
    double squares = 0;
    for (const float logit : logits) {
      ASSERT_TRUE(std::isfinite(logit));
      squares += double(logit) * logit;
    }
    const double deviation = std::sqrt(squares / double(logits.size()));
    EXPECT_GT(deviation, 0.1);
    EXPECT_LT(deviation, 1);
  }
}

TEST(RandomCheckpoints, RefuseWhatTheyDoNotKnow) {
  EXPECT_THROW(plan_random(options_of("gpt-2")), ConfigError);
  EXPECT_THROW(plan_random(options_of("tiny", "q9")), ConfigError);
}

}  // namespace
}  // namespace ef::testing
