// Every fixture's config against values written by hand from its config.json and the family's documentation.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "tests/model/editable_checkpoint.h"

namespace ef::testing {
namespace {

struct Expected {
  const char* name;
  const char* arch;
  int hidden, heads, kv_heads, head_dim;
  const char* layers;  ///< a letter each: D dense, S sparse, W sparse with a window
  int window;
  int experts, top_k;
  RouterScore score;
  bool renormalise;
  float scale;
  int dense_ffn, expert_ffn, shared_ffn;
  RopeKind rope;
  double theta;
  int rotary;
  bool interleaved;
  bool tied;
};
void PrintTo(const Expected& e, std::ostream* out) { *out << e.name; }

constexpr auto kSoft = RouterScore::kSoftmax;
constexpr auto kSigm = RouterScore::kSigmoid;
constexpr auto kAfter = RouterScore::kSoftmaxAfterTopK;
constexpr auto kMixer = RouterScore::kSparsemixer;
using enum RopeKind;

// clang-format off
const Expected kHf[] = {
    {"mixtral", "mixtral", 64, 4, 2, 16, "SSS", 0, 8, 2, kSoft, true, 1, 0, 96, 0, kDefault, 1e6, 16, false, false},
    {"mixtral-tied-sharded", "mixtral", 64, 4, 4, 16, "SSS", 0, 4, 2, kSoft, true, 1, 0, 96, 0, kDefault, 1e6, 16, false, true},
    {"mixtral-rope-linear", "mixtral", 64, 4, 2, 16, "SSS", 0, 4, 2, kSoft, true, 1, 0, 64, 0, kLinear, 1e4, 16, false, false},
    {"mixtral-rope-dynamic", "mixtral", 64, 4, 2, 16, "SSS", 0, 4, 2, kSoft, true, 1, 0, 64, 0, kDynamic, 1e4, 16, false, false},
    {"mixtral-rope-llama3", "mixtral", 64, 4, 2, 16, "SSS", 0, 4, 2, kSoft, true, 1, 0, 64, 0, kLlama3, 5e5, 16, false, false},
    {"mixtral-sliding", "mixtral", 64, 4, 2, 16, "WWW", 32, 4, 2, kSoft, true, 1, 0, 64, 0, kDefault, 1e6, 16, false, false},
    {"qwen2_moe", "qwen2_moe", 64, 4, 2, 16, "SSS", 0, 8, 4, kSoft, false, 1, 96, 32, 64, kDefault, 1e4, 16, false, false},
    {"qwen3_moe", "qwen3_moe", 64, 4, 2, 32, "SSS", 0, 16, 4, kSoft, true, 1, 96, 32, 0, kDefault, 1e4, 32, false, false},
    {"qwen3_moe-mixed-layers", "qwen3_moe", 64, 4, 2, 16, "DSDD", 0, 8, 2, kSoft, false, 1, 96, 32, 0, kDefault, 1e4, 16, false, false},
    {"qwen3_moe-fp8", "qwen3_moe", 160, 4, 2, 32, "SS", 0, 4, 2, kSoft, true, 1, 96, 144, 0, kDefault, 1e4, 32, false, false},
    {"qwen3_moe-k-quant-sizes", "qwen3_moe", 256, 4, 2, 64, "SS", 0, 4, 2, kSoft, true, 1, 256, 256, 0, kDefault, 1e4, 64, false, false},
    {"olmoe", "olmoe", 64, 4, 2, 16, "SSS", 0, 16, 4, kSoft, false, 1, 0, 32, 0, kDefault, 1e4, 16, false, false},
    {"deepseek_v2", "deepseek_v2", 64, 4, 1, 32, "DSS", 0, 8, 2, kSoft, false, 1, 96, 32, 64, kDefault, 1e4, 16, true, false},
    {"deepseek_v2-grouped", "deepseek_v2", 64, 4, 1, 32, "DSS", 0, 8, 2, kSoft, false, 16, 96, 32, 32, kDefault, 1e4, 16, true, false},
    {"deepseek_v2-yarn-mscale", "deepseek_v2", 64, 4, 1, 32, "DSS", 0, 8, 2, kSoft, false, 1, 96, 32, 32, kYarn, 1e4, 16, true, false},
    {"deepseek_v3", "deepseek_v3", 64, 4, 1, 32, "DSS", 0, 8, 2, kSigm, true, 2.5, 96, 32, 32, kDefault, 1e4, 16, true, false},
    {"deepseek_v3-yarn-mscale", "deepseek_v3", 64, 4, 1, 32, "DSS", 0, 8, 2, kSigm, true, 2.5, 96, 32, 32, kYarn, 1e4, 16, true, false},
    {"gpt_oss", "gpt_oss", 64, 4, 2, 16, "WSWS", 16, 8, 4, kAfter, false, 1, 0, 64, 0, kYarn, 150000, 16, false, false},
    {"gpt_oss-mxfp4-clamp", "gpt_oss", 64, 4, 2, 16, "WS", 16, 4, 2, kAfter, false, 1, 0, 64, 0, kYarn, 150000, 16, false, false},
    {"phimoe", "phimoe", 64, 4, 2, 16, "SSS", 0, 8, 2, kMixer, false, 1, 0, 96, 0, kDefault, 1e6, 16, false, false},
    {"phimoe-longrope", "phimoe", 64, 4, 2, 16, "SSS", 0, 4, 2, kMixer, false, 1, 0, 64, 0, kLongrope, 1e4, 16, false, false},
    {"granitemoe", "granitemoe", 64, 4, 2, 16, "SSS", 0, 8, 4, kAfter, false, 1, 0, 32, 0, kDefault, 1e4, 16, false, false},
    {"glm4_moe", "glm4_moe", 64, 4, 2, 32, "DSS", 0, 8, 2, kSigm, true, 1.5, 96, 32, 32, kDefault, 1e4, 16, false, false},
};
// The converter permutes q and k of "llama" and "granitemoe" files: their rope pairs are neighbours.
const Expected kGguf[] = {
    {"mixtral", "mixtral", 64, 4, 2, 16, "SSS", 0, 8, 2, kSoft, true, 1, 0, 96, 0, kDefault, 1e6, 16, true, false},
    {"mixtral-tied-sharded", "mixtral", 64, 4, 4, 16, "SSS", 0, 4, 2, kSoft, true, 1, 0, 96, 0, kDefault, 1e6, 16, true, true},
    {"qwen2_moe", "qwen2_moe", 64, 4, 2, 16, "SSS", 0, 8, 4, kSoft, false, 1, 96, 32, 64, kDefault, 1e4, 16, false, false},
    {"qwen3_moe", "qwen3_moe", 64, 4, 2, 32, "SSS", 0, 16, 4, kSoft, true, 1, 96, 32, 0, kDefault, 1e4, 32, false, false},
    {"deepseek_v3", "deepseek_v3", 64, 4, 1, 32, "DSS", 0, 8, 2, kSigm, true, 2.5, 96, 32, 32, kDefault, 1e4, 16, true, false},
    {"gpt_oss", "gpt_oss", 64, 4, 2, 16, "WSWS", 16, 8, 4, kAfter, false, 1, 0, 64, 0, kYarn, 150000, 16, false, false},
    {"gpt_oss-mxfp4-clamp", "gpt_oss", 64, 4, 2, 16, "WS", 16, 4, 2, kAfter, false, 1, 0, 64, 0, kYarn, 150000, 16, false, false},
    {"granitemoe", "granitemoe", 64, 4, 2, 16, "SSS", 0, 8, 4, kAfter, false, 1, 0, 32, 0, kDefault, 1e4, 16, true, false},
    {"glm4_moe", "glm4_moe", 64, 4, 2, 32, "DSS", 0, 8, 2, kSigm, true, 1.5, 96, 32, 32, kDefault, 1e4, 16, false, false},
};
// clang-format on

void check(const Config& c, const Expected& e) {
  EXPECT_EQ(c.arch, e.arch);
  EXPECT_EQ(c.vocab, 256);
  EXPECT_EQ(c.hidden, e.hidden);
  EXPECT_EQ(c.heads, e.heads);
  EXPECT_EQ(c.kv_heads, e.kv_heads);
  EXPECT_EQ(c.head_dim, e.head_dim);
  std::string layers;
  for (const LayerConfig& l : c.layers) {
    layers += l.window ? 'W' : l.sparse ? 'S' : 'D';
    EXPECT_EQ(l.window, l.window ? e.window : 0);
  }
  EXPECT_EQ(layers, e.layers);
  EXPECT_EQ(c.router.experts, e.experts);
  EXPECT_EQ(c.router.top_k, e.top_k);
  EXPECT_EQ(c.router.score, e.score);
  EXPECT_EQ(c.router.renormalise, e.renormalise);
  EXPECT_EQ(c.router.scale, e.scale);
  EXPECT_EQ(c.dense_ffn, e.dense_ffn);
  EXPECT_EQ(c.expert_ffn, e.expert_ffn);
  EXPECT_EQ(c.shared_ffn, e.shared_ffn);
  EXPECT_EQ(c.rope.kind, e.rope);
  EXPECT_EQ(c.rope.theta, e.theta);
  EXPECT_EQ(c.rope.rotary_dim, e.rotary);
  EXPECT_EQ(c.rope.interleaved, e.interleaved);
  EXPECT_EQ(c.tied_embeddings, e.tied);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-6f);
}

std::string safe(std::string name) {
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
}

class HfConfig : public ::testing::TestWithParam<Expected> {};
TEST_P(HfConfig, MatchesHandWrittenValues) {
  Checkpoint checkpoint = open_checkpoint(hf_fixture(GetParam().name));
  Config c = config_of(checkpoint);
  check(c, GetParam());
  EXPECT_EQ(c.eos, std::vector<TokenId>{2});
  EXPECT_EQ(c.bos, TokenId{1});
}
INSTANTIATE_TEST_SUITE_P(Fixtures, HfConfig, ::testing::ValuesIn(kHf),
                         [](const auto& i) { return safe(i.param.name); });

class GgufConfig : public ::testing::TestWithParam<Expected> {};
TEST_P(GgufConfig, MatchesHandWrittenValues) {
  Checkpoint checkpoint = open_checkpoint(gguf_fixture(GetParam().name));
  check(config_of(checkpoint), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Fixtures, GgufConfig, ::testing::ValuesIn(kGguf),
                         [](const auto& i) { return safe(i.param.name); });

Config hf(const char* name) { return config_of(open_checkpoint(hf_fixture(name))); }
Config gguf(const char* name) { return config_of(open_checkpoint(gguf_fixture(name))); }

TEST(ConfigDetails, EveryFixtureIsListed) {
  size_t hf_count = 0, gguf_count = 0;
  for (const auto& e : std::filesystem::directory_iterator(std::filesystem::path(EF_FIXTURES) / "hf"))
    hf_count += e.is_directory();
  for (const auto& e : std::filesystem::directory_iterator(std::filesystem::path(EF_FIXTURES) / "gguf"))
    gguf_count += e.is_regular_file();
  EXPECT_EQ(hf_count, std::size(kHf));
  EXPECT_EQ(gguf_count, std::size(kGguf));
}

TEST(ConfigDetails, Latent) {
  Config lite = hf("deepseek_v2"), full = hf("deepseek_v3"), file = gguf("deepseek_v3");
  ASSERT_TRUE(lite.latent && full.latent && file.latent);
  EXPECT_EQ(lite.latent->q_lora, 0);
  for (const Config& c : {full, file}) {
    EXPECT_EQ(c.latent->q_lora, 32);
    EXPECT_EQ(c.latent->kv_lora, 32);
    EXPECT_EQ(c.latent->nope, 16);
    EXPECT_EQ(c.latent->rope, 16);
    EXPECT_EQ(c.latent->v_dim, 16);
    EXPECT_EQ(c.router.groups, 4);
    EXPECT_EQ(c.router.top_groups, 2);
    EXPECT_EQ(c.router.group_score, GroupScore::kSumOfTop2);
    EXPECT_TRUE(c.selection_bias);
    EXPECT_FLOAT_EQ(c.attention_scale, float(1 / std::sqrt(32.0)));
  }
  EXPECT_FALSE(full.split_kv_b);
  EXPECT_TRUE(file.split_kv_b);
}

TEST(ConfigDetails, DeepseekV2GroupsByBestExpert) {
  Config c = hf("deepseek_v2-grouped");
  EXPECT_EQ(c.router.groups, 4);
  EXPECT_EQ(c.router.top_groups, 2);
  EXPECT_EQ(c.router.group_score, GroupScore::kMax);
  EXPECT_FALSE(c.selection_bias);
  EXPECT_EQ(hf("deepseek_v2").router.groups, 1);
}

TEST(ConfigDetails, YarnScalesTheSoftmax) {
  // mscale(4, 1) = 0.1 ln 4 + 1 = 1.138629436...; its square over sqrt(32).
  for (const char* name : {"deepseek_v2-yarn-mscale", "deepseek_v3-yarn-mscale"})
    EXPECT_NEAR(hf(name).attention_scale, 1.1386294361119891 * 1.1386294361119891 / 5.656854249492381, 1e-7);
}

TEST(ConfigDetails, GptOss) {
  for (const Config& c : {hf("gpt_oss"), gguf("gpt_oss")}) {
    EXPECT_TRUE(c.sinks);
    EXPECT_EQ(c.activation.kind, ActivationKind::kClampedSwiglu);
    EXPECT_FLOAT_EQ(c.activation.alpha, 1.702f);
    EXPECT_FLOAT_EQ(c.activation.limit, 7.f);
    EXPECT_FALSE(c.rope.truncate);
    EXPECT_EQ(c.rope.factor, 32);
    EXPECT_EQ(c.rope.original_max_positions, 4096);
    EXPECT_TRUE(c.qkv_bias && c.o_bias);
  }
}

TEST(ConfigDetails, Granite) {
  for (const Config& c : {hf("granitemoe"), gguf("granitemoe")}) {
    EXPECT_FLOAT_EQ(c.embedding_scale, 6.f);
    EXPECT_FLOAT_EQ(c.residual_scale, 0.3f);
    EXPECT_FLOAT_EQ(c.logit_scale, 0.25f);
    EXPECT_FLOAT_EQ(c.attention_scale, 0.1f);
  }
}

TEST(ConfigDetails, NormsAndBiases) {
  EXPECT_EQ(hf("phimoe").norm, NormKind::kLayer);
  EXPECT_TRUE(hf("phimoe").head_bias && hf("phimoe").qkv_bias && hf("phimoe").o_bias);
  EXPECT_FLOAT_EQ(hf("phimoe").router.jitter_eps, 0.01f);
  EXPECT_EQ(hf("mixtral").norm, NormKind::kRms);
  EXPECT_EQ(hf("olmoe").qk_norm, QkNorm::kWhole);
  EXPECT_EQ(hf("mixtral").qk_norm, QkNorm::kNone);
  for (const Config& c : {hf("qwen3_moe"), gguf("qwen3_moe"), hf("glm4_moe"), gguf("glm4_moe")})
    EXPECT_EQ(c.qk_norm, QkNorm::kPerHead);
  for (const Config& c : {hf("qwen2_moe"), gguf("qwen2_moe")}) EXPECT_TRUE(c.qkv_bias && !c.o_bias && c.shared_gate);
  for (const Config& c : {hf("glm4_moe"), gguf("glm4_moe")}) EXPECT_TRUE(c.qkv_bias && !c.o_bias && !c.shared_gate);
  EXPECT_EQ(hf("glm4_moe").skipped_layers, 1);
  EXPECT_EQ(hf("deepseek_v3").skipped_layers, 1);
  EXPECT_EQ(gguf("glm4_moe").skipped_layers, 0);
}

TEST(ConfigDetails, Longrope) {
  RopeConfig r = hf("phimoe-longrope").rope;
  EXPECT_EQ(r.short_factor, (std::vector<double>{1, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6}));
  EXPECT_EQ(r.long_factor, (std::vector<double>{1, 1.5, 2, 3, 4, 6, 8, 10}));
  EXPECT_EQ(r.short_mscale, 1.1);
  EXPECT_EQ(r.long_mscale, 1.25);
  EXPECT_EQ(r.original_max_positions, 64);
  EXPECT_FALSE(r.long_frequencies);  // written by transformers 5, which keeps the short factors
  EditableCheckpoint e(hf_fixture("phimoe-longrope"));
  e.config["rope_scaling"] = e.config["rope_parameters"];  // as the authors and transformers 4 write it
  e.config.erase("rope_parameters");
  EXPECT_TRUE(config_of(e).rope.long_frequencies);
}

}  // namespace
}  // namespace ef::testing
