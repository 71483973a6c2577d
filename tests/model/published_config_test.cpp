// Files as they are published, where they differ from the fixtures: keys that older converters did not write, and what
// a published checkpoint has that its GGUF lost. Expected values are those of the published config.json.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/editable_checkpoint.h"

namespace ef::testing {
namespace {

// Without exps tensors of that many experts the config is all that can be read.
Config deepseek_gguf(int64_t experts, int64_t used, bool v3, bool group_keys) {
  EditableCheckpoint edited(gguf_fixture("deepseek_v3"));
  edited.set("deepseek2.expert_count", experts);
  edited.set("deepseek2.expert_used_count", used);
  edited.set("deepseek2.expert_gating_func", v3 ? 2 : 1);
  if (!group_keys) {
    edited.erase("deepseek2.expert_group_count");
    edited.erase("deepseek2.expert_group_used_count");
  }
  return config_of(edited);
}

TEST(PublishedGguf, C5_DeepSeekWithoutGroupKeysRoutesAsItsCheckpoint) {
  const Config r1 = deepseek_gguf(256, 8, true, false);  // DeepSeek-V3 and R1: n_group 8, topk_group 4
  EXPECT_EQ(r1.router.groups, 8);
  EXPECT_EQ(r1.router.top_groups, 4);
  EXPECT_FALSE(r1.notes.empty());
  const Config v2 = deepseek_gguf(160, 6, false, false);  // DeepSeek-V2: n_group 8, topk_group 3
  EXPECT_EQ(v2.router.groups, 8);
  EXPECT_EQ(v2.router.top_groups, 3);
  const Config lite = deepseek_gguf(64, 6, false, false);  // V2-Lite: n_group 1
  EXPECT_EQ(lite.router.groups, 1);
  const Config given = deepseek_gguf(256, 8, true, true);  // the file's own word wins
  EXPECT_EQ(given.router.groups, 4);
  EXPECT_EQ(given.router.top_groups, 2);
}

TEST(PublishedGguf, C4_SigmoidRoutingWithoutSelectionBiasIsNoted) {
  EditableCheckpoint edited(gguf_fixture("glm4_moe"));
  const auto noted = [](const Config& c) {
    return std::any_of(c.notes.begin(), c.notes.end(),
                       [](const auto& n) { return n.find("exp_probs_b") != std::string::npos; });
  };
  EXPECT_FALSE(noted(config_of(edited)));
  std::erase_if(edited.tensors, [](const auto& t) { return t.first.find("exp_probs_b") != std::string::npos; });
  EXPECT_TRUE(noted(config_of(edited)));
}

TEST(PublishedHuggingFace, PredictionLayersAreSkippedWithoutTheirKey) {
  EditableCheckpoint edited(hf_fixture("glm4_moe"));
  edited.config.erase("num_nextn_predict_layers");
  const size_t layers = edited.config["num_hidden_layers"];
  const std::string last = "model.layers." + std::to_string(layers - 1) + ".";
  // A layer after the last, with the tensors that such layers have beside a decoder layer's.
  std::map<std::string, EditableTensor> extra;
  for (const auto& [name, tensor] : edited.tensors)
    if (name.starts_with(last))
      extra["model.layers." + std::to_string(layers) + "." + name.substr(last.size())] = tensor;
  ASSERT_FALSE(extra.empty());
  edited.tensors.insert(extra.begin(), extra.end());
  edited.put_f32("model.layers." + std::to_string(layers) + ".enorm.weight", {64}, std::vector<float>(64, 1.f));
  const Config config = config_of(edited);
  EXPECT_EQ(config.layers.size(), layers);
  EXPECT_EQ(config.skipped_layers, 1);
  EXPECT_EQ(binding_of(edited).skipped.size(), extra.size() + 1);
}

}  // namespace
}  // namespace ef::testing
