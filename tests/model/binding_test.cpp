// From names to places: every fixture binds with nothing left over; files that break other loaders are answered by
// name.
#include "expertflow/model/binding.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/model/editable_checkpoint.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

EditableCheckpoint hf(const char* name) { return EditableCheckpoint(hf_fixture(name)); }
EditableCheckpoint gguf(const char* name) { return EditableCheckpoint(gguf_fixture(name)); }

std::vector<std::string> fixture_names() {
  std::vector<std::string> out;
  for (const auto& e : fs::directory_iterator(fs::path(EF_FIXTURES) / "hf"))
    if (e.is_directory()) out.push_back("hf/" + e.path().filename().string());
  for (const auto& e : fs::directory_iterator(fs::path(EF_FIXTURES) / "gguf"))
    out.push_back("gguf/" + e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

class BindFixture : public ::testing::TestWithParam<std::string> {};

// Every byte of the file has a place, and only one, but for tensors that the binding reports as skipped.
TEST_P(BindFixture, UsesEveryTensorOnce) {
  Checkpoint c = open_checkpoint(fs::path(EF_FIXTURES) / GetParam());
  Config config = config_of(c);
  Binding b = binding_of(c);
  std::multiset<std::string> resident;
  std::set<std::string> expert_tensors;
  for (const BoundTensor& t : b.tensors) {
    resident.insert(t.tensor.name);
    if (!t.scales.name.empty()) resident.insert(t.scales.name);
  }
  EXPECT_EQ(b.experts.size(), size_t(config.sparse_layers()));
  for (const LayerExperts& l : b.experts) {
    EXPECT_TRUE(config.layers[size_t(l.layer)].sparse);
    EXPECT_EQ(l.experts.size(), size_t(config.router.experts));
    for (const auto& sources : l.experts)
      for (const PartSource& s : sources) {
        expert_tensors.insert(s.tensor.name);
        if (!s.scales.name.empty()) expert_tensors.insert(s.scales.name);
      }
  }
  for (const std::string& name : resident) EXPECT_EQ(resident.count(name), 1u) << name;
  for (const std::string& name : expert_tensors) EXPECT_EQ(resident.count(name), 0u) << name;
  EXPECT_EQ(resident.size() + expert_tensors.size() + b.skipped.size(), c.directory.tensors().size());
  EXPECT_TRUE(b.skipped.empty());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, BindFixture, ::testing::ValuesIn(fixture_names()), [](const auto& i) {
  std::string name = i.param;
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
});

TEST(BindingHostile, A11_DenseTensorsUnderAMoeConfig) {
  EditableCheckpoint e = gguf("qwen3_moe");
  for (int l = 0; l < 3; ++l)
    for (const char* part : {"gate", "up", "down"}) {
      const std::string layer = "blk." + std::to_string(l) + ".ffn_" + part;
      EditableTensor t = e.take(layer + "_exps.weight");
      t.shape.erase(t.shape.begin());
      t.bytes.resize(t.bytes.size() / 16);
      e.tensors[layer + ".weight"] = std::move(t);
    }
  EXPECT_MODEL_ERROR(binding_of(e), "qwen3_moe", "dense feed-forward tensors only", "blk.0.ffn_up.weight",
                     "blk.0.ffn_gate_exps.weight");
}

TEST(BindingHostile, A20_AllMissingTensorsAreListedOnce) {
  EditableCheckpoint e = hf("mixtral");
  e.take("model.norm.weight");
  e.take("model.layers.1.self_attn.q_proj.weight");
  e.take("model.layers.2.block_sparse_moe.gate.weight");
  e.take("model.layers.2.block_sparse_moe.experts.5.w3.weight");
  const std::string message = model_error([&] { binding_of(e); });
  for (const char* name :
       {"4 tensors are missing", "model.norm.weight", "model.layers.1.self_attn.q_proj.weight",
        "model.layers.2.block_sparse_moe.gate.weight", "model.layers.2.block_sparse_moe.experts.5.w3.weight"}) {
    const size_t at = message.find(name);
    EXPECT_NE(at, std::string::npos) << message;
    EXPECT_EQ(message.find(name, at + 1), std::string::npos) << message;
  }
  e = gguf("mixtral");
  e.take("blk.1.ffn_down_exps.weight");
  EXPECT_MODEL_ERROR(binding_of(e), "1 tensors are missing", "blk.1.ffn_down_exps.weight");
}

TEST(BindingHostile, A20_ManyMissingTensorsStayReadable) {
  EditableCheckpoint e = hf("qwen3_moe");
  std::erase_if(e.tensors, [](const auto& item) {
    return item.first.find("experts.") != std::string::npos && item.first.find("experts.0.") == std::string::npos;
  });
  const std::string message = model_error([&] { binding_of(e); });
  EXPECT_NE(message.find("135 tensors are missing"), std::string::npos) << message;  // 3 layers x 15 experts x 3
  EXPECT_NE(message.find(" more"), std::string::npos);
  EXPECT_LT(message.size(), 3000u);
}

TEST(BindingHostile, B5_ExpertsMissingAltogether) {
  EditableCheckpoint e = hf("qwen3_moe");
  std::erase_if(e.tensors, [](const auto& item) { return item.first.find(".1.mlp.experts.") != std::string::npos; });
  EXPECT_MODEL_ERROR(binding_of(e), "missing", "model.layers.1.mlp.experts.*.gate_proj.weight");
}

TEST(BindingHostile, A17_UnknownScaleSideTensorsAreRefused) {
  for (const char* name : {"blk.0.ffn_gate_exps.scale", "blk.1.attn_q.input_scale"}) {
    EditableCheckpoint e = gguf("mixtral");
    e.put_f32(name, {1}, {0.5f});
    EXPECT_MODEL_ERROR(binding_of(e), name, "no use for 1 tensors", "quantisation");
  }
  EditableCheckpoint e = hf("qwen3_moe-fp8");
  e.put_f32("model.layers.0.self_attn.q_proj.input_scale", {1}, {0.5f});
  EXPECT_MODEL_ERROR(binding_of(e), "model.layers.0.self_attn.q_proj.input_scale");
}

TEST(BindingHostile, A18_GgufWithoutOutputUsesTheEmbedding) {
  EditableCheckpoint e = gguf("qwen3_moe");
  e.take("output.weight");
  EXPECT_TRUE(config_of(e).tied_embeddings);
  Binding b = binding_of(e);
  for (const BoundTensor& t : b.tensors) EXPECT_NE(t.spec->role, Role::kHead);
}

TEST(BindingHostile, B4_TiedAndUntiedHeads) {
  EditableCheckpoint e = hf("mixtral");
  e.config["tie_word_embeddings"] = true;  // tied, and lm_head is there: it is not used
  Binding b = binding_of(e);
  EXPECT_EQ(b.skipped, std::vector<std::string>{"lm_head.weight"});
  e.take("lm_head.weight");  // tied and absent
  EXPECT_TRUE(binding_of(e).skipped.empty());
  e.config["tie_word_embeddings"] = false;  // untied and absent
  EXPECT_MODEL_ERROR(binding_of(e), "lm_head.weight", "tie_word_embeddings is false", "missing");
  e.config.erase("tie_word_embeddings");  // the families' default is untied
  EXPECT_MODEL_ERROR(binding_of(e), "lm_head.weight");
}

TEST(BindingHostile, B7_Fp8ScalesOfCroppedBlocks) {
  EditableCheckpoint e = hf("qwen3_moe-fp8");
  Binding b = binding_of(e);
  int found = 0;
  for (const BoundTensor& t : b.tensors)
    if (t.tensor.format == Format::kF8E4M3) {
      ++found;
      EXPECT_EQ(t.scales.shape, (std::vector<int64_t>{(t.tensor.rows() + 127) / 128, (t.tensor.cols() + 127) / 128}));
    }
  EXPECT_EQ(found, 8);  // q, k, v, o in 2 layers
  const ExpertPart* scales = b.experts[0].layout.find(ExpertRole::kDownScales);
  ASSERT_NE(scales, nullptr);
  EXPECT_EQ(scales->rows, 2);  // 160 x 144
  EXPECT_EQ(scales->cols, 2);
  const std::string name = "model.layers.0.mlp.experts.1.up_proj.weight_scale_inv";
  EditableCheckpoint wrong = e;
  wrong.put_f32(name, {1, 2}, {1, 1});
  EXPECT_MODEL_ERROR(binding_of(wrong), name.c_str(), "[2 (rows / 128, rounded up), 2 (columns / 128, rounded up)]",
                     "[1, 2]");
  wrong = e;
  wrong.take(name);
  EXPECT_MODEL_ERROR(binding_of(wrong), name.c_str(), "missing");
  wrong = e;
  wrong.take("model.layers.1.self_attn.o_proj.weight_scale_inv");
  EXPECT_MODEL_ERROR(binding_of(wrong), "model.layers.1.self_attn.o_proj.weight_scale_inv", "missing");
}

TEST(BindingHostile, C12_UnusedTensorsAreAnError) {
  EditableCheckpoint e = hf("mixtral");
  e.put_f32("model.layers.0.self_attn.q_norm.weight", {16}, std::vector<float>(16, 1));
  EXPECT_MODEL_ERROR(binding_of(e), "no use for 1 tensors", "model.layers.0.self_attn.q_norm.weight", "mixtral");
  e = hf("qwen3_moe-mixed-layers");  // read as all dense or all sparse, the file does not fit
  e.config["mlp_only_layers"] = {1};
  e.config["decoder_sparse_step"] = 1;
  EXPECT_MODEL_ERROR(binding_of(e), "missing", "model.layers.1.mlp.up_proj.weight");
  e = hf("qwen3_moe");
  e.config["num_hidden_layers"] = 2;  // a third layer is left over
  EXPECT_MODEL_ERROR(binding_of(e), "no use for", "model.layers.2.");
}

TEST(Binding, PredictionLayersAreSkippedKnowingly) {
  EditableCheckpoint e = hf("deepseek_v3");  // num_nextn_predict_layers is 1
  e.put_f32("model.layers.3.eh_proj.weight", {2, 2}, {1, 2, 3, 4});
  e.put_f32("model.layers.3.mlp.experts.0.up_proj.weight", {2, 2}, {1, 2, 3, 4});
  e.put_f32("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, {1, 2});
  Binding b = binding_of(e);
  EXPECT_EQ(b.skipped,
            (std::vector<std::string>{"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.3.eh_proj.weight",
                                      "model.layers.3.mlp.experts.0.up_proj.weight"}));
  e.put_f32("model.layers.4.eh_proj.weight", {1}, {1});
  EXPECT_MODEL_ERROR(binding_of(e), "model.layers.4.eh_proj.weight");
  EditableCheckpoint g = gguf("glm4_moe");
  g.set("glm4moe.block_count", 4);
  g.set("glm4moe.nextn_predict_layers", 1);
  g.put_f32("blk.3.nextn.eh_proj.weight", {2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(config_of(g).layers.size(), 3u);
  EXPECT_EQ(config_of(g).skipped_layers, 1);
  EXPECT_EQ(binding_of(g).skipped, std::vector<std::string>{"blk.3.nextn.eh_proj.weight"});
}

TEST(BindingHostile, ShapesAreNamed) {
  EditableCheckpoint e = hf("mixtral");
  e.tensors["model.layers.0.self_attn.k_proj.weight"].shape = {64, 32};
  EXPECT_MODEL_ERROR(binding_of(e), "model.layers.0.self_attn.k_proj.weight", "[32 (kv_heads * head_dim), 64 (hidden)]",
                     "[64, 32]");
  e = hf("mixtral");
  e.put_f32("model.layers.0.input_layernorm.weight", {32}, std::vector<float>(32, 1));
  EXPECT_MODEL_ERROR(binding_of(e), "model.layers.0.input_layernorm.weight", "[64 (hidden)]", "[32]");
  e = gguf("mixtral");
  e.set("llama.expert_count", 4);
  e.set("llama.expert_used_count", 2);
  EXPECT_MODEL_ERROR(binding_of(e), "4 (experts)", "[8, 64]");
  e = hf("granitemoe");
  e.config["intermediate_size"] = 16;
  EXPECT_MODEL_ERROR(binding_of(e), "input_linear", "8 (experts), 32 (expert rows)", "[8, 64, 64]");
  e = hf("gpt_oss-mxfp4-clamp");
  e.tensors["model.layers.0.mlp.experts.down_proj_scales"].shape = {4, 2, 64};
  EXPECT_MODEL_ERROR(binding_of(e), "model.layers.0.mlp.experts.down_proj_scales", "[4, 2, 64]");
}

TEST(BindingHostile, FormatsAreNamed) {
  EditableCheckpoint e = hf("mixtral");
  EditableTensor& q = e.tensors["model.layers.0.self_attn.q_proj.weight"];
  q.format = Format::kI8;
  q.bytes.resize(q.bytes.size() / 2);
  EXPECT_MODEL_ERROR(binding_of(e), "model.layers.0.self_attn.q_proj.weight", "weight format", "I8");
  e = hf("mixtral");
  EditableTensor& w = e.tensors["model.layers.1.block_sparse_moe.experts.3.w2.weight"];
  w.format = Format::kF32;
  w.bytes.resize(w.bytes.size() * 2);
  EXPECT_MODEL_ERROR(binding_of(e), "model.layers.1.block_sparse_moe.experts.3.w2.weight",
                     "expected BF16 as for expert 0", "F32");
}

TEST(Binding, ResidentBytesAreThoseOfTheTensors) {
  // mixtral in BF16: embedding, head, 3 x (q, k, v, o, router) as stored, norms as float32.
  Binding b = binding_of(hf("mixtral"));
  const uint64_t matrices = 2 * (256 * 64 * 2 + 3 * (64 * 64 * 2 + 32 * 64 * 2 + 8 * 64));
  EXPECT_EQ(b.resident_bytes, matrices + 7 * 64 * 4);
}

}  // namespace
}  // namespace ef::testing
