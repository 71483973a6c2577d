// Resident weights as they arrive in the backend's memory, and what loading refuses.
#include "expertflow/model/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "tests/model/editable_checkpoint.h"

namespace ef::testing {
namespace {

EditableCheckpoint hf(const char* name) { return EditableCheckpoint(hf_fixture(name)); }
EditableCheckpoint gguf(const char* name) { return EditableCheckpoint(gguf_fixture(name)); }

struct Loaded {
  explicit Loaded(Checkpoint c) : checkpoint(std::move(c)), pool(1), backend(make_cpu_backend(pool, Isa::kReference)) {
    const Architecture& arch = find_architecture(checkpoint);
    config = read_config(arch, checkpoint);
    binding = bind(arch, config, checkpoint);
    weights = load_weights(config, binding, checkpoint.directory, *backend, [this](uint64_t done, uint64_t total) {
      EXPECT_GE(done, progress);
      EXPECT_LE(done, total);
      progress = done, progress_total = total;
    });
  }
  Checkpoint checkpoint;
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
  Config config;
  Binding binding;
  uint64_t progress = 0, progress_total = 0;
  Weights weights;
};

std::vector<float> numbers(const MatrixView& m) {
  std::vector<float> out(size_t(m.rows * m.cols));
  for (int64_t r = 0; r < m.rows; ++r) dequantize_row(m, r, out.data() + r * m.cols);
  return out;
}

std::vector<float> tensor(const Loaded& l, const std::string& name) {
  return l.checkpoint.directory.read_f32(l.checkpoint.directory.at(name));
}

TEST(Weights, EveryFixtureTakesTheBytesThatBindingForetold) {
  for (const char* kind : {"hf", "gguf"})
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(EF_FIXTURES) / kind)) {
      Loaded l(open_checkpoint(entry.path()));
      uint64_t owned = 0;
      for (const Buffer& b : l.weights.owned) owned += b.size();
      EXPECT_EQ(l.weights.bytes, l.binding.resident_bytes) << entry.path();
      EXPECT_EQ(owned, l.weights.bytes) << entry.path();
      EXPECT_EQ(l.progress, l.progress_total) << entry.path();
      EXPECT_GT(l.progress, 0u);
    }
}

TEST(Weights, MatricesAndVectorsAreTheFiles) {
  Loaded l(open_checkpoint(hf_fixture("qwen2_moe")));
  const LayerWeights& w = l.weights.layers[1];
  EXPECT_EQ(numbers(w.q), tensor(l, "model.layers.1.self_attn.q_proj.weight"));
  EXPECT_EQ(numbers(w.o), tensor(l, "model.layers.1.self_attn.o_proj.weight"));
  EXPECT_EQ(numbers(w.router), tensor(l, "model.layers.1.mlp.gate.weight"));
  EXPECT_EQ(numbers(w.shared_down), tensor(l, "model.layers.1.mlp.shared_expert.down_proj.weight"));
  EXPECT_EQ(numbers(w.shared_expert_gate), tensor(l, "model.layers.1.mlp.shared_expert_gate.weight"));
  EXPECT_EQ(numbers(l.weights.embed), tensor(l, "model.embed_tokens.weight"));
  EXPECT_EQ(numbers(l.weights.head), tensor(l, "lm_head.weight"));
  const std::vector<float> bias = tensor(l, "model.layers.1.self_attn.v_proj.bias"),
                           norm = tensor(l, "model.norm.weight");
  EXPECT_TRUE(std::equal(bias.begin(), bias.end(), w.v_bias));
  EXPECT_TRUE(std::equal(norm.begin(), norm.end(), l.weights.final_norm));
  EXPECT_EQ(w.o_bias, nullptr);
  EXPECT_EQ(w.q_norm, nullptr);
  EXPECT_FALSE(w.dense_gate);
  EXPECT_EQ(w.q.format, Format::kBF16);
  for (const float* v : {w.attn_norm, w.q_bias, w.ffn_norm}) EXPECT_EQ(reinterpret_cast<uintptr_t>(v) % 64, 0u);
}

TEST(Weights, TiedHeadIsTheEmbedding) {
  Loaded l(open_checkpoint(hf_fixture("mixtral-tied-sharded")));
  EXPECT_EQ(l.weights.head.data, l.weights.embed.data);
}

// The two halves of kv_b_proj: transformers stores them fused, llama.cpp's converter writes them apart with the keys
// transposed.
TEST(Weights, LatentHalvesAreThoseOfTheConverter) {
  Loaded from_hf(open_checkpoint(hf_fixture("deepseek_v3"))), from_gguf(open_checkpoint(gguf_fixture("deepseek_v3")));
  for (size_t l = 0; l < 3; ++l) {
    const LayerWeights &a = from_hf.weights.layers[l], &b = from_gguf.weights.layers[l];
    EXPECT_EQ(a.k_b.rows, 4 * 32);
    EXPECT_EQ(a.k_b.cols, 16);
    EXPECT_EQ(numbers(a.k_b), numbers(b.k_b));
    EXPECT_EQ(numbers(a.v_b), numbers(b.v_b));
    EXPECT_EQ(a.k_b.format, Format::kBF16);
  }
}

// The old GGUF layout keeps attn_kv_b whole; a file may also keep it beside the halves.
TEST(Weights, GgufWithFusedKvB) {
  EditableCheckpoint e = gguf("deepseek_v3"), original(hf_fixture("deepseek_v3"));
  EditableCheckpoint both = e;
  for (int l = 0; l < 3; ++l) {
    const std::string layer = "blk." + std::to_string(l);
    EditableTensor fused = original.take("model.layers." + std::to_string(l) + ".self_attn.kv_b_proj.weight");
    both.tensors[layer + ".attn_kv_b.weight"] = fused;
    e.tensors[layer + ".attn_kv_b.weight"] = std::move(fused);
    e.take(layer + ".attn_k_b.weight");
    e.take(layer + ".attn_v_b.weight");
  }
  // Files of that time describe the heads without the _mla keys.
  e.set("deepseek2.attention.key_length", 32);
  e.set("deepseek2.attention.value_length", 16);
  e.erase("deepseek2.attention.key_length_mla");
  e.erase("deepseek2.attention.value_length_mla");
  e.set("deepseek2.attention.head_count_kv", 4);
  Loaded old(e.build()), with_both(both.build()), now(open_checkpoint(gguf_fixture("deepseek_v3")));
  EXPECT_EQ(with_both.binding.skipped.size(), 3u);
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(numbers(old.weights.layers[l].k_b), numbers(now.weights.layers[l].k_b));
    EXPECT_EQ(numbers(old.weights.layers[l].v_b), numbers(now.weights.layers[l].v_b));
    EXPECT_EQ(numbers(with_both.weights.layers[l].k_b), numbers(now.weights.layers[l].k_b));
  }
}

TEST(Weights, Fp8KvBIsDequantised) {
  EditableCheckpoint e = hf("deepseek_v3");
  EditableTensor& t = e.tensors["model.layers.0.self_attn.kv_b_proj.weight"];  // [128, 32]: 4 heads of 16 + 16 rows
  t.format = Format::kF8E4M3;
  t.bytes.resize(128 * 32);
  for (size_t i = 0; i < t.bytes.size(); ++i) t.bytes[i] = std::byte((i * 37) % 0x7f);
  const std::vector<std::byte> bytes = t.bytes;
  e.put_f32("model.layers.0.self_attn.kv_b_proj.weight_scale_inv", {1, 1}, {0.25f});
  Loaded l(e.build());
  const MatrixView &k = l.weights.layers[0].k_b, &v = l.weights.layers[0].v_b;
  ASSERT_EQ(k.format, Format::kF32);
  const std::vector<float> keys = numbers(k), values = numbers(v);
  for (size_t h = 0; h < 4; ++h)
    for (size_t i = 0; i < 32; ++i)
      for (size_t j = 0; j < 16; ++j) {
        EXPECT_EQ(keys[(h * 32 + i) * 16 + j], 0.25f * e4m3_to_f32(uint8_t(bytes[(h * 32 + j) * 32 + i])));
        EXPECT_EQ(values[(h * 16 + j) * 32 + i], 0.25f * e4m3_to_f32(uint8_t(bytes[(h * 32 + 16 + j) * 32 + i])));
      }
}

TEST(Weights, FusedQkvIsSplit) {
  // A Phi-MoE GGUF, renamed from the Hugging Face fixture, with q, k and v in one tensor.
  EditableCheckpoint e = hf("phimoe");
  EditableCheckpoint g = gguf("mixtral");
  g.tensors.clear();
  g.set_text("general.architecture", "phimoe");
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
                          "expert_count", "expert_used_count", "rope.freq_base"})
    g.gguf.metadata.values[std::string("phimoe.") + key] = g.gguf.metadata.values.at(std::string("llama.") + key);
  auto append = [](EditableTensor& to, const EditableTensor& from) {
    to.shape[0] += from.shape[0];
    to.bytes.insert(to.bytes.end(), from.bytes.begin(), from.bytes.end());
  };
  struct Name {
    const char *hf, *gguf;
  };
  for (Name n : {Name{"model.embed_tokens.weight", "token_embd.weight"}, Name{"lm_head.weight", "output.weight"},
                 Name{"lm_head.bias", "output.bias"}, Name{"model.norm.weight", "output_norm.weight"},
                 Name{"model.norm.bias", "output_norm.bias"}})
    g.tensors[n.gguf] = e.tensors.at(n.hf);
  for (int l = 0; l < 3; ++l) {
    const std::string from = "model.layers." + std::to_string(l) + ".", to = "blk." + std::to_string(l) + ".";
    for (const char* end : {"weight", "bias"}) {
      EditableTensor qkv = e.tensors.at(from + "self_attn.q_proj." + end);
      append(qkv, e.tensors.at(from + "self_attn.k_proj." + end));
      append(qkv, e.tensors.at(from + "self_attn.v_proj." + end));
      g.tensors[to + "attn_qkv." + end] = qkv;
      g.tensors[to + "attn_output." + end] = e.tensors.at(from + "self_attn.o_proj." + end);
      g.tensors[to + "attn_norm." + end] = e.tensors.at(from + "input_layernorm." + end);
      g.tensors[to + "ffn_norm." + end] = e.tensors.at(from + "post_attention_layernorm." + end);
    }
    g.tensors[to + "ffn_gate_inp.weight"] = e.tensors.at(from + "block_sparse_moe.gate.weight");
    for (Name n : {Name{"w1", "gate"}, Name{"w3", "up"}, Name{"w2", "down"}})
      for (int x = 0; x < 8; ++x)
        g.tensors[to + "ffn_" + n.gguf + "." + std::to_string(x) + ".weight"] =
            e.tensors.at(from + "block_sparse_moe.experts." + std::to_string(x) + "." + n.hf + ".weight");
  }
  Loaded fused(g.build()), separate(open_checkpoint(hf_fixture("phimoe")));
  EXPECT_EQ(fused.config.arch, "phimoe");
  EXPECT_EQ(fused.config.norm, NormKind::kLayer);
  EXPECT_EQ(fused.config.router.score, RouterScore::kSparsemixer);
  for (size_t l = 0; l < 3; ++l) {
    const LayerWeights &a = fused.weights.layers[l], &b = separate.weights.layers[l];
    EXPECT_EQ(numbers(a.q), numbers(b.q));
    EXPECT_EQ(numbers(a.k), numbers(b.k));
    EXPECT_EQ(numbers(a.v), numbers(b.v));
    EXPECT_TRUE(std::equal(b.q_bias, b.q_bias + 64, a.q_bias));
    EXPECT_TRUE(std::equal(b.k_bias, b.k_bias + 32, a.k_bias));
    EXPECT_TRUE(std::equal(b.v_bias, b.v_bias + 32, a.v_bias));
  }
}

TEST(WeightsHostile, C8_NanOrInfInNormsRouterAndBiases) {
  struct Case {
    const char *fixture, *tensor, *layer;
  };
  for (const Case& c : {Case{"gpt_oss", "model.layers.2.mlp.router.bias", "layer 2"},
                        Case{"gpt_oss", "model.layers.1.mlp.router.weight", "layer 1"},
                        Case{"qwen3_moe", "model.layers.0.input_layernorm.weight", "layer 0"},
                        Case{"qwen3_moe", "model.norm.weight", "model.norm"},
                        Case{"deepseek_v3", "model.layers.1.mlp.gate.e_score_correction_bias", "layer 1"},
                        Case{"qwen2_moe", "model.layers.2.self_attn.k_proj.bias", "layer 2"}})
    for (uint16_t bad : {0x7fc0, 0xff80}) {  // BF16 NaN and -infinity
      EditableCheckpoint e = hf(c.fixture);
      std::vector<std::byte>& bytes = e.tensors.at(c.tensor).bytes;
      std::memcpy(bytes.data() + bytes.size() - sizeof bad, &bad, sizeof bad);
      EXPECT_MODEL_ERROR(Loaded(e.build()), c.tensor, c.layer, "finite");
    }
}

TEST(WeightsHostile, B8_ResidentScales) {
  const std::string name = "model.layers.1.self_attn.o_proj.weight_scale_inv";  // [2, 1]
  EditableCheckpoint e = hf("qwen3_moe-fp8");
  e.put_f32(name, {2, 1}, {0.01f, 118.f});
  EXPECT_MODEL_ERROR(Loaded(e.build()), name.c_str(), "block scale 1", "118");
  e.put_f32(name, {2, 1}, {std::nanf(""), 0.01f});
  EXPECT_MODEL_ERROR(Loaded(e.build()), name.c_str(), "block scale 0");
  e.tensors[name] = {Format::kU8, {2, 1}, {std::byte{119}, std::byte{121}}};
  Loaded l(e.build());
  EXPECT_EQ(l.weights.layers[1].o.scales[0], 0x1p-8f);
  EXPECT_EQ(l.weights.layers[1].o.scales[1], 0x1p-6f);
}

}  // namespace
}  // namespace ef::testing
