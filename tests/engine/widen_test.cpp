// Widening: the goldens of the narrow fixtures hold for the wide ones, and the tiles lie where hand arithmetic puts
// them.
#include "expertflow/engine/widen.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"
#include "expertflow/weights/checkpoint.h"
#include "tests/support/golden_check.h"
#include "tests/support/temp_folder.h"

namespace ef::testing {
namespace {

namespace fs = std::filesystem;

fs::path hf(const std::string& name) { return fixtures() / "hf" / name; }
fs::path gguf(const std::string& name) { return fixtures() / "gguf" / (name + ".gguf"); }

WidenOptions options(const fs::path& model, const fs::path& out, int a, int b) {
  WidenOptions o;
  o.model = model;
  o.out = out;
  o.hidden_copies = a;
  o.expert_copies = b;
  return o;
}

/// The narrow and the wide checkpoint, tensors as float32.
struct Pair {
  Pair(const fs::path& model, int a, int b, const std::string& out = "wide") {
    report = widen(options(model, folder.path / out, a, b));
    narrow = open_checkpoint(model);
    wide = open_checkpoint(folder.path / out);
  }
  std::vector<float> before(const std::string& name) const {
    return narrow.directory.read_f32(narrow.directory.at(name));
  }
  std::vector<float> after(const std::string& name) const { return wide.directory.read_f32(wide.directory.at(name)); }
  std::vector<int64_t> shape(const std::string& name) const { return wide.directory.at(name).shape; }

  TempFolder folder;
  WidenReport report;
  Checkpoint narrow, wide;
};

/// m [rows, cols] tiled: out[r][c] = m[r % rows][c % cols], and 0 where zero(r / rows, c / cols).
std::vector<float> tiled(const std::vector<float>& m, int64_t rows, int64_t cols, int row_copies, int col_copies,
                         bool zero_rows = false, bool zero_cols = false) {
  std::vector<float> out;
  for (int64_t r = 0; r < rows * row_copies; ++r) {
    for (int64_t c = 0; c < cols * col_copies; ++c) {
      const bool zero = (zero_rows && r >= rows) || (zero_cols && c >= cols);
      out.push_back(zero ? 0.0f : m[size_t(r % rows * cols + c % cols)]);
    }
  }
  return out;
}

std::vector<float> halved_twice(std::vector<float> x) {
  const std::vector<float> once = tiled(x, 1, int64_t(x.size()), 1, 2);
  std::vector<float> out = once;
  for (float& v : out) v /= 2;
  return out;
}

using Shape = std::vector<int64_t>;

// mixtral: hidden 64, heads 4 of 16, kv heads 2, experts 96 wide, vocabulary 256.
TEST(Widen, PutsTilesOfSeparateExpertsWhereHandArithmeticSays) {
  const Pair p(hf("mixtral"), 2, 3);
  const std::string layer = "model.layers.1.";
  EXPECT_EQ(p.after("model.embed_tokens.weight"), tiled(p.before("model.embed_tokens.weight"), 256, 64, 1, 2));
  EXPECT_EQ(p.after("lm_head.weight"), tiled(p.before("lm_head.weight"), 256, 64, 1, 2));
  EXPECT_EQ(p.after("model.norm.weight"), halved_twice(p.before("model.norm.weight")));
  for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
    EXPECT_EQ(p.after(layer + norm), halved_twice(p.before(layer + norm))) << norm;
  }
  const std::string q = layer + "self_attn.q_proj.weight", o = layer + "self_attn.o_proj.weight";
  EXPECT_EQ(p.after(q), tiled(p.before(q), 64, 64, 1, 2));
  EXPECT_EQ(p.shape(q), (Shape{64, 128}));
  EXPECT_EQ(p.after(o), tiled(p.before(o), 64, 64, 2, 1));
  const nlohmann::json& config = p.wide.config;
  EXPECT_EQ(config["hidden_size"], 128);
  EXPECT_EQ(config["intermediate_size"], 288);
  EXPECT_EQ(config["head_dim"], 16);  // hidden / heads would be 32 now
  EXPECT_EQ(config["num_attention_heads"], 4);
  EXPECT_EQ(p.report.hidden, 128);
  EXPECT_EQ(p.report.expert_ffn, 288);
  EXPECT_EQ(p.report.bytes_out, p.wide.directory.total_bytes());
  EXPECT_EQ(p.report.bytes_in, p.narrow.directory.total_bytes());
  EXPECT_TRUE(p.report.dropped.empty());
}

// olmoe: hidden 64, experts 32 wide, one matrix an expert.
TEST(Widen, ZeroesTheDownColumnsOfCopiedNeurons) {
  const Pair p(hf("olmoe"), 2, 3);
  for (const TensorInfo& t : p.narrow.directory.tensors()) {
    if (t.name.find("experts.") == std::string::npos) continue;
    if (t.shape != Shape{64, 32}) {
      ASSERT_EQ(t.shape, (Shape{32, 64})) << t.name;
      ASSERT_EQ(p.after(t.name), tiled(p.before(t.name), 32, 64, 3, 2)) << t.name;
    } else {
      ASSERT_EQ(p.after(t.name), tiled(p.before(t.name), 64, 32, 2, 3, false, true)) << t.name;
    }
  }
  // Norms over all q and k are no hidden axis.
  const std::string q_norm = "model.layers.0.self_attn.q_norm.weight";
  EXPECT_EQ(p.after(q_norm), p.before(q_norm));
}

// granitemoe: input_linear [8, 2 * 32, 64], gate rows then up rows.
TEST(Widen, TilesGateAndUpHalvesApart) {
  const Pair p(hf("granitemoe"), 2, 2);
  const std::string name = "model.layers.0.block_sparse_moe.input_linear.weight";
  ASSERT_EQ(p.shape(name), (Shape{8, 128, 128}));
  const std::vector<float> before = p.before(name), after = p.after(name);
  for (int64_t e = 0; e < 8; ++e) {
    for (int64_t r = 0; r < 128; ++r) {
      const int64_t source_row = r < 64 ? r % 32 : 32 + r % 32;
      for (int64_t c = 0; c < 128; ++c) {
        ASSERT_EQ(after[size_t((e * 128 + r) * 128 + c)], before[size_t((e * 64 + source_row) * 64 + c % 64)])
            << e << r << c;
      }
    }
  }
}

// gpt_oss: gate_up [8, 64 in, 128 out], columns gate, up, gate, up; down [8, 64 in, 64 out].
TEST(Widen, KeepsInterleavedTransposedColumnsInPairs) {
  const Pair p(hf("gpt_oss"), 2, 3);
  const std::string experts = "model.layers.2.mlp.experts.";
  ASSERT_EQ(p.shape(experts + "gate_up_proj"), (Shape{8, 128, 384}));
  ASSERT_EQ(p.shape(experts + "down_proj"), (Shape{8, 192, 128}));
  const std::vector<float> gate_up = p.before(experts + "gate_up_proj"), down = p.before(experts + "down_proj");
  const std::vector<float> wide_gate_up = p.after(experts + "gate_up_proj"), wide_down = p.after(experts + "down_proj");
  for (size_t e = 0; e < 8; ++e) {
    auto part = [e](const std::vector<float>& v) {
      const size_t n = v.size() / 8;
      return std::vector<float>(v.begin() + long(e * n), v.begin() + long((e + 1) * n));
    };
    ASSERT_EQ(part(wide_gate_up), tiled(part(gate_up), 64, 128, 2, 3));
    ASSERT_EQ(part(wide_down), tiled(part(down), 64, 64, 3, 2, true));
  }
  EXPECT_EQ(p.after(experts + "gate_up_proj_bias"), tiled(p.before(experts + "gate_up_proj_bias"), 8, 128, 1, 3));
  EXPECT_EQ(p.after(experts + "down_proj_bias"), tiled(p.before(experts + "down_proj_bias"), 8, 64, 1, 2));
  EXPECT_EQ(p.after("model.layers.2.self_attn.o_proj.bias"),
            tiled(p.before("model.layers.2.self_attn.o_proj.bias"), 1, 64, 1, 2));
  EXPECT_EQ(p.after("model.layers.2.self_attn.sinks"), p.before("model.layers.2.self_attn.sinks"));
}

// phimoe: LayerNorm, whose bias feeds the matrices too.
TEST(Widen, DividesNormBiases) {
  const Pair p(hf("phimoe"), 2, 1);
  for (const char* name :
       {"model.layers.0.input_layernorm.bias", "model.layers.2.post_attention_layernorm.bias", "model.norm.bias"}) {
    EXPECT_EQ(p.after(name), halved_twice(p.before(name))) << name;
  }
  EXPECT_EQ(p.after("lm_head.bias"), p.before("lm_head.bias"));
}

TEST(Widen, WritesZeroBlocksThatDecodeToZero) {
  const Pair p(gguf("gpt_oss-mxfp4-clamp"), 2, 2, "wide.gguf");
  const std::string name = "blk.0.ffn_down_exps.weight";
  ASSERT_EQ(p.wide.directory.at(name).format, Format::kMXFP4);
  ASSERT_EQ(p.shape(name), (Shape{4, 128, 128}));
  const std::vector<float> before = p.before(name), after = p.after(name);
  for (size_t e = 0; e < 4; ++e) {
    const std::vector<float> narrow(before.begin() + long(e * 64 * 64), before.begin() + long((e + 1) * 64 * 64));
    const std::vector<float> wide(after.begin() + long(e * 128 * 128), after.begin() + long((e + 1) * 128 * 128));
    ASSERT_EQ(wide, tiled(narrow, 64, 64, 2, 2, false, true));
  }
  const GgufMetadata& metadata = p.wide.gguf.metadata;
  EXPECT_EQ(metadata.integer("gpt-oss.embedding_length"), 128);
  EXPECT_EQ(metadata.integer("gpt-oss.expert_feed_forward_length"), 128);
  EXPECT_EQ(metadata.integer("gpt-oss.attention.key_length"), 16);
}

TEST(Widen, StatesHeadSizesThatMetadataLeftOut) {
  const Pair p(gguf("mixtral"), 2, 2, "wide.gguf");
  const GgufMetadata& metadata = p.wide.gguf.metadata;
  EXPECT_EQ(metadata.integer("llama.embedding_length"), 128);
  EXPECT_EQ(metadata.integer("llama.feed_forward_length"), 192);
  EXPECT_EQ(metadata.integer("llama.attention.key_length"), 16);
  EXPECT_EQ(metadata.integer("llama.attention.value_length"), 16);
  EXPECT_EQ(metadata.integer("llama.rope.dimension_count"), 16);
}

std::string file_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Widen, DoesNotDependOnTheBuffer) {
  TempFolder folder;
  WidenOptions small = options(gguf("granitemoe"), folder.path / "small.gguf", 2, 2);
  small.buffer_bytes = 1;
  widen(small);
  widen(options(gguf("granitemoe"), folder.path / "large.gguf", 2, 2));
  EXPECT_TRUE(file_bytes(folder.path / "small.gguf") == file_bytes(folder.path / "large.gguf"));
}

TEST(Widen, ReadsAndWritesShards) {
  TempFolder folder;
  WidenOptions sharded = options(hf("mixtral-tied-sharded"), folder.path / "sharded", 2, 2);
  sharded.shard_bytes = 200'000;
  widen(sharded);
  widen(options(hf("mixtral-tied-sharded"), folder.path / "whole", 2, 2));
  EXPECT_TRUE(fs::exists(folder.path / "sharded" / "model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(folder.path / "whole" / "model.safetensors"));
  const TensorDirectory a = open_checkpoint(folder.path / "sharded").directory;
  const TensorDirectory b = open_checkpoint(folder.path / "whole").directory;
  EXPECT_GT(a.file_count(), 3);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const TensorInfo& t : a.tensors()) EXPECT_EQ(a.read(t), b.read(b.at(t.name))) << t.name;
}

TEST(Widen, ReportsProgressToTheEnd) {
  TempFolder folder;
  uint64_t last = 0, total = 0;
  const WidenReport report =
      widen(options(hf("mixtral"), folder.path / "wide", 2, 1), [&](uint64_t done, uint64_t all) {
        EXPECT_GE(done, last);
        last = done;
        total = all;
      });
  EXPECT_EQ(last, report.bytes_out);
  EXPECT_EQ(total, report.bytes_out);
}

TEST(Widen, CopiesTheTokenizerButNoOtherWeights) {
  TempFolder folder;
  const fs::path model = folder.path / "model", out = folder.path / "out";
  fs::copy(hf("mixtral"), model);
  std::ofstream(model / "tokenizer.json") << "{}";
  std::ofstream(model / "chat_template.jinja") << "x";
  std::ofstream(model / "pytorch_model.bin") << "x";
  widen(options(model, out, 1, 2));
  EXPECT_TRUE(fs::exists(out / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(out / "chat_template.jinja"));
  EXPECT_TRUE(fs::exists(out / "generation_config.json"));
  EXPECT_FALSE(fs::exists(out / "pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(out / "golden.safetensors"));
}

TEST(Widen, WritesNormsInF32WhereDivisionWouldRound) {
  const Pair by_three(hf("mixtral"), 3, 1);
  EXPECT_EQ(by_three.wide.directory.at("model.norm.weight").format, Format::kF32);
  EXPECT_EQ(by_three.after("model.norm.weight")[70], by_three.before("model.norm.weight")[6] / 3);
  const Pair half_precision(hf("mixtral-tied-sharded"), 2, 1);
  EXPECT_EQ(half_precision.wide.directory.at("model.norm.weight").format, Format::kF32);
  EXPECT_EQ(half_precision.wide.directory.at("model.embed_tokens.weight").format, Format::kF16);
}

template <class E>
std::string message_of(const WidenOptions& o) {
  try {
    widen(o);
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

TEST(Widen, RefusesTilesThatCutScaleBlocks) {
  TempFolder folder;
  const std::string message = message_of<ModelError>(options(hf("qwen3_moe-fp8"), folder.path / "wide", 2, 1));
  EXPECT_NE(message.find("_proj.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("multiple of 128"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(folder.path / "wide"));
}

TEST(Widen, RefusesBadFactorsAndAnExistingResult) {
  TempFolder folder;
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 0}, {-2, 1}, {1, 1025}, {1000000, 1}}) {
    EXPECT_NE(message_of<ConfigError>(options(hf("mixtral"), folder.path / "wide", a, b)), "") << a << " " << b;
  }
  EXPECT_NE(message_of<ConfigError>(options(hf("mixtral"), folder.path, 2, 2)).find("does not exist"),
            std::string::npos);
  EXPECT_NE(message_of<ModelError>(options(folder.path / "none", folder.path / "wide", 2, 2)), "");
}

struct GoldenWiden {
  const char* name;
  bool gguf;
  int a, b;
};

class WidenGolden : public ::testing::TestWithParam<GoldenWiden> {};

TEST_P(WidenGolden, LogitsExpertsAndGreedyTokensStay) {
  const GoldenWiden& c = GetParam();
  const std::string name = c.name;
  TempFolder folder;
  const fs::path out = folder.path / (c.gguf ? "wide.gguf" : "wide");
  widen(options(c.gguf ? gguf(name) : hf(name), out, c.a, c.b));
  // Sums over more terms round differently: twice the tolerance of the narrow fixture.
  Fixture fixture{name, out, hf(name) / "golden.safetensors", name.find("tied") == std::string::npos ? 2e-4 : 2e-3};
  const FixtureReport report = check_fixture(fixture, "resident");
  EXPECT_TRUE(report.pass(fixture)) << report.text();
  EXPECT_GT(report.greedy_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, WidenGolden,
                         ::testing::ValuesIn(std::vector<GoldenWiden>{{"mixtral", false, 2, 3},
                                                                      {"mixtral-tied-sharded", false, 4, 2},
                                                                      {"qwen2_moe", false, 2, 2},
                                                                      {"qwen3_moe", false, 4, 3},
                                                                      {"qwen3_moe-mixed-layers", false, 2, 2},
                                                                      {"olmoe", false, 8, 1},
                                                                      {"deepseek_v2", false, 2, 2},
                                                                      {"deepseek_v3", false, 2, 3},
                                                                      {"gpt_oss", false, 2, 2},
                                                                      {"gpt_oss-mxfp4-clamp", false, 2, 2},
                                                                      {"phimoe", false, 4, 2},
                                                                      {"granitemoe", false, 2, 3},
                                                                      {"glm4_moe", false, 2, 2},
                                                                      {"qwen3_moe", false, 3, 1},
                                                                      {"qwen3_moe", false, 1, 4},
                                                                      {"mixtral", true, 2, 2},
                                                                      {"mixtral-tied-sharded", true, 2, 2},
                                                                      {"qwen2_moe", true, 2, 3},
                                                                      {"qwen3_moe", true, 2, 2},
                                                                      {"deepseek_v3", true, 4, 2},
                                                                      {"gpt_oss", true, 2, 2},
                                                                      {"gpt_oss-mxfp4-clamp", true, 2, 3},
                                                                      {"granitemoe", true, 2, 2},
                                                                      {"glm4_moe", true, 2, 2}}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.gguf ? "gguf_" : "hf_") + info.param.name + "_" +
                                              std::to_string(info.param.a) + "x" + std::to_string(info.param.b);
                           for (char& ch : name) {
                             if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace ef::testing
