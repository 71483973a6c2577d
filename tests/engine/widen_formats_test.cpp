// Widening a model in each storage format: narrow and wide checkpoint compute the same. The models are the fixture with
// sizes of 256, quantised here.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "expertflow/engine/widen.h"
#include "expertflow/weights/checkpoint.h"
#include "expertflow/weights/writers.h"
#include "tests/support/golden_check.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

fs::path source_folder() { return fixtures() / "hf" / "qwen3_moe-k-quant-sizes"; }

struct Tensor {
  std::string name;
  Format format;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

Tensor make_tensor(const std::string& name, Format format, const std::vector<int64_t>& shape,
                   const std::vector<float>& values) {
  Tensor t{name, format, shape, std::vector<std::byte>(row_bytes(format, int64_t(values.size())))};
  format_info(format).quantize(values.data(), t.bytes.data(), int64_t(values.size()));
  return t;
}

void write_all(CheckpointWriter& writer, const std::vector<Tensor>& tensors) {
  for (const Tensor& t : tensors) writer.declare(t.name, t.format, t.shape);
  for (const Tensor& t : tensors) writer.write(t.bytes);
  writer.finish();
}

/// GGUF of the source with the matrices of the second layer, but for the router, in `format`, and those of the first in
/// BF16.
void write_gguf(const fs::path& file, Format format) {
  const Checkpoint hf = open_checkpoint(source_folder());
  GgufMetadata metadata = open_checkpoint(fixtures() / "gguf" / "qwen3_moe.gguf").gguf.metadata;
  auto set = [&](const char* key, int64_t value) {
    GgufValue entry;
    entry.value = value;
    metadata.values[std::string("qwen3moe.") + key] = entry;
  };
  set("block_count", 2);
  set("embedding_length", 256);
  set("feed_forward_length", 256);
  set("expert_feed_forward_length", 256);
  set("attention.head_count", 4);
  set("attention.head_count_kv", 2);
  set("attention.key_length", 64);
  set("attention.value_length", 64);
  set("rope.dimension_count", 64);
  set("expert_count", 4);
  set("expert_used_count", 2);

  std::vector<Tensor> tensors;
  auto add = [&](const std::string& name, const std::string& from, Format f) {
    const TensorInfo& t = hf.directory.at(from);
    tensors.push_back(make_tensor(name, f, t.shape, hf.directory.read_f32(t)));
  };
  add("token_embd.weight", "model.embed_tokens.weight", Format::kBF16);
  add("output.weight", "lm_head.weight", format);
  add("output_norm.weight", "model.norm.weight", Format::kF32);
  const std::pair<const char*, const char*> per_layer[] = {
      {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
      {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
      {"ffn_gate_inp", "mlp.gate"},        {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}};
  for (int l = 0; l < 2; ++l) {
    const Format matrices = l == 0 ? Format::kBF16 : format;
    const std::string to = "blk." + std::to_string(l) + ".", from = "model.layers." + std::to_string(l) + ".";
    for (const auto& [name, hf_name] : per_layer) {
      const bool matrix = std::string(hf_name).ends_with("_proj");
      add(to + name + ".weight", from + hf_name + ".weight", matrix ? matrices : Format::kF32);
    }
    for (const char* part : {"gate", "up", "down"}) {
      const TensorInfo& t = hf.directory.at(from + "mlp.experts.0." + part + "_proj.weight");
      Tensor stacked = make_tensor(to + "ffn_" + part + "_exps.weight", matrices, t.shape, hf.directory.read_f32(t));
      // Quantising is slow, so the other experts are the first one with its rows rotated.
      const std::vector<std::byte> first = stacked.bytes;
      for (size_t e = 1; e < 4; ++e) {
        const auto middle = first.begin() + long(e * 64 * row_bytes(matrices, 256));
        stacked.bytes.insert(stacked.bytes.end(), middle, first.end());
        stacked.bytes.insert(stacked.bytes.end(), first.begin(), middle);
      }
      stacked.shape = {4, 256, 256};
      tensors.push_back(std::move(stacked));
    }
  }
  write_all(*make_gguf_writer(file, metadata), tensors);
}

/// A matrix as e4m3 under 128x128 block scales, each block with a scale of its own.
void add_fp8(std::vector<Tensor>& tensors, const std::string& name, const std::vector<int64_t>& shape,
             std::vector<float> values) {
  const int64_t rows = shape[0], cols = shape[1], block_cols = (cols + 127) / 128;
  std::vector<float> scales(size_t((rows + 127) / 128 * block_cols), 0);
  auto scale_at = [&](int64_t i) -> float& { return scales[size_t(i / cols / 128 * block_cols + i % cols / 128)]; };
  for (int64_t i = 0; i < rows * cols; ++i) scale_at(i) = std::max(scale_at(i), std::abs(values[size_t(i)]) / 448);
  for (int64_t i = 0; i < rows * cols; ++i) values[size_t(i)] /= scale_at(i);
  tensors.push_back(make_tensor(name, Format::kF8E4M3, shape, values));
  tensors.push_back(make_tensor(name + "_scale_inv", Format::kF32, {(rows + 127) / 128, block_cols}, scales));
}

void write_fp8(const fs::path& folder) {
  const Checkpoint hf = open_checkpoint(source_folder());
  std::vector<Tensor> tensors;
  for (const TensorInfo& t : hf.directory.tensors()) {
    if (t.name.find("_proj.weight") != std::string::npos) {
      add_fp8(tensors, t.name, t.shape, hf.directory.read_f32(t));
    } else {
      tensors.push_back({t.name, t.format, t.shape, hf.directory.read(t)});
    }
  }
  write_all(*make_safetensors_writer(folder), tensors);
  nlohmann::json config = hf.config;
  config["quantization_config"] =
      nlohmann::json::parse(std::ifstream(fixtures() / "hf" / "qwen3_moe-fp8" / "config.json"))["quantization_config"];
  std::ofstream(folder / "config.json") << config.dump();
}

struct Answers {
  std::vector<float> logits;
  std::vector<TokenId> greedy;
};

Answers answers(const fs::path& model) {
  static const Log log;
  EngineOptions options;
  options.all_resident = true;
  options.ctx_size = 128;
  options.max_logit_rows = 64;
  options.activations = "f32";
  options.cache_type_k = options.cache_type_v = "f32";
  options.threads = 2;
  Engine engine(open_model(model), options, log);
  const std::vector<TokenId> prompt = read_golden(source_folder() / "golden.safetensors")[2].ids;
  Answers out;
  out.greedy = greedy_tokens(engine, prompt, 16);
  const SequenceId sequence = engine.kv().open(int64_t(prompt.size()));
  Batch batch;
  batch.pieces.push_back({sequence, prompt, Batch::Piece::Logits::kAll});
  const auto logits = engine.step(batch);
  out.logits.assign(logits.begin(), logits.end());
  engine.kv().close(sequence);
  return out;
}

void expect_same_answers(const fs::path& narrow, const fs::path& wide) {
  const Answers a = answers(narrow), b = answers(wide);
  EXPECT_EQ(a.greedy, b.greedy);
  ASSERT_EQ(a.logits.size(), b.logits.size());
  // Logits have a standard deviation near 1; sums over more terms round differently.
  float worst = 0;
  for (size_t i = 0; i < a.logits.size(); ++i) worst = std::max(worst, std::abs(a.logits[i] - b.logits[i]));
  EXPECT_LT(worst, 2e-4);
}

WidenOptions twice(const fs::path& model, const fs::path& out) {
  WidenOptions o;
  o.model = model;
  o.out = out;
  o.hidden_copies = o.expert_copies = 2;
  return o;
}

class WidenFormat : public ::testing::TestWithParam<Format> {};

TEST_P(WidenFormat, NarrowAndWideAnswerTheSame) {
  TempFolder folder;
  const fs::path narrow = folder.path / "narrow.gguf", wide = folder.path / "wide.gguf";
  write_gguf(narrow, GetParam());
  widen(twice(narrow, wide));
  EXPECT_EQ(open_checkpoint(wide).directory.at("blk.1.ffn_down_exps.weight").format, GetParam());
  expect_same_answers(narrow, wide);
}

std::vector<Format> gguf_formats() {
  std::vector<Format> out;
  for (const FormatInfo& f : all_formats()) {
    if (f.dequantize && f.ggml_type >= 0) out.push_back(f.format);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Gguf, WidenFormat, ::testing::ValuesIn(gguf_formats()),
                         [](const auto& info) { return std::string(format_info(info.param).name); });

TEST(WidenFp8, TilesTheBlockScalesToo) {
  TempFolder folder;
  write_fp8(folder.path / "narrow");
  widen(twice(folder.path / "narrow", folder.path / "wide"));
  const Checkpoint wide = open_checkpoint(folder.path / "wide");
  const TensorInfo& scales = wide.directory.at("model.layers.0.mlp.experts.1.down_proj.weight_scale_inv");
  EXPECT_EQ(scales.shape, (std::vector<int64_t>{4, 4}));
  expect_same_answers(folder.path / "narrow", folder.path / "wide");
}

}  // namespace
}  // namespace ef::testing
