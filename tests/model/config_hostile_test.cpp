// Configs that break other engines: keys named otherwise, absent, null, of the wrong type or kind. Ids as in the
// catalogue of bad inputs.
#include <gtest/gtest.h>

#include <cmath>

#include "expertflow/model/rope.h"
#include "tests/model/editable_checkpoint.h"

namespace ef::testing {
namespace {

using nlohmann::json;

EditableCheckpoint hf(const char* name) { return EditableCheckpoint(hf_fixture(name)); }
EditableCheckpoint gguf(const char* name) { return EditableCheckpoint(gguf_fixture(name)); }

bool has_note(const Config& c, const std::string& part) {
  for (const std::string& note : c.notes)
    if (note.find(part) != std::string::npos) return true;
  return false;
}

// ---- names and defaults of library versions ----

TEST(ConfigVersions, ExpertCountHasThreeNames) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    EditableCheckpoint e = hf("qwen3_moe");
    e.config.erase("num_local_experts");
    e.config[key] = 16;
    EXPECT_EQ(config_of(e).router.experts, 16) << key;
  }
}

TEST(ConfigVersions, RopeThetaBesideOrInsideRopeParameters) {
  EditableCheckpoint e = hf("mixtral");
  e.config.erase("rope_parameters");
  e.config["rope_theta"] = 77777.0;
  e.config["rope_scaling"] = nullptr;
  EXPECT_EQ(config_of(e).rope.theta, 77777.0);
  e.config["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(config_of(e).rope.kind, RopeKind::kLinear);
  e.config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"type", "linear"}, {"factor", 2}, {"original_max_position_embeddings", 128}};
  EXPECT_EQ(config_of(e).rope.kind, RopeKind::kYarn);
  EXPECT_EQ(config_of(e).rope.theta, 77777.0);
  e.config.erase("rope_theta");
  EXPECT_EQ(config_of(e).rope.theta, 1e6);  // Mixtral's own
}

TEST(ConfigVersions, PartialRotaryFactorInEitherPlace) {
  EditableCheckpoint e = hf("glm4_moe");
  e.config.erase("partial_rotary_factor");
  EXPECT_EQ(config_of(e).rope.rotary_dim, 16);
  e.config["rope_parameters"].erase("partial_rotary_factor");
  EXPECT_EQ(config_of(e).rope.rotary_dim, 16);  // the family's default, 0.5
  e.config["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(config_of(e).rope.rotary_dim, 8);
  e.config["partial_rotary_factor"] = 1.5;
  EXPECT_MODEL_ERROR(config_of(e), "config.json", "partial_rotary_factor", "1.5");
}

TEST(ConfigVersions, HeadDimNullOrAbsent) {
  EditableCheckpoint e = hf("qwen3_moe");
  e.config["head_dim"] = nullptr;
  EXPECT_EQ(config_of(e).head_dim, 16);
  e.config.erase("head_dim");
  EXPECT_EQ(config_of(e).head_dim, 16);
}

TEST(ConfigVersions, GptOssLimitAndLayerTypes) {
  EditableCheckpoint e = hf("gpt_oss");
  e.config["swiglu_limit"] = 5.5;
  e.config.erase("layer_types");
  e.config["experts_per_token"] = 4;
  Config c = config_of(e);
  EXPECT_FLOAT_EQ(c.activation.limit, 5.5f);
  EXPECT_EQ(c.layers[0].window, 16);
  EXPECT_EQ(c.layers[1].window, 0);
  EXPECT_EQ(c.layers[2].window, 16);
}

TEST(ConfigVersions, Qwen2WindowFromMaxWindowLayers) {
  EditableCheckpoint e = hf("qwen2_moe");
  e.config.erase("layer_types");
  e.config["sliding_window"] = 8;
  EXPECT_EQ(config_of(e).layers[2].window, 0);  // use_sliding_window is false
  e.config["use_sliding_window"] = true;
  e.config["max_window_layers"] = 2;
  Config c = config_of(e);
  EXPECT_EQ(c.layers[1].window, 0);
  EXPECT_EQ(c.layers[2].window, 8);
}

TEST(ConfigVersions, Qwen2BiasAndOlmoeClip) {
  EditableCheckpoint q = hf("qwen2_moe");
  q.config.erase("qkv_bias");
  EXPECT_TRUE(config_of(q).qkv_bias);
  EditableCheckpoint o = hf("olmoe");
  o.config["clip_qkv"] = 8.0;
  EXPECT_FLOAT_EQ(config_of(o).clip_qkv, 8.f);
}

// The converter writes 0.1 * mscale_all_dim; the same model's config.json has mscale = mscale_all_dim = 1.
TEST(ConfigVersions, GgufYarnMultiplierMeansWhatConfigJsonMeans) {
  EditableCheckpoint e = gguf("deepseek_v3");
  e.set_text("deepseek2.rope.scaling.type", "yarn");
  e.set_number("deepseek2.rope.scaling.factor", 4);
  e.set("deepseek2.rope.scaling.original_context_length", 96);
  e.set_number("deepseek2.rope.scaling.yarn_log_multiplier", 0.1);
  const Config file = config_of(e), json = config_of(hf("deepseek_v3-yarn-mscale"));
  EXPECT_NEAR(file.attention_scale, json.attention_scale, 1e-7);
  const RopeFrequencies a = rope_frequencies(file.rope, 512, 10), b = rope_frequencies(json.rope, 512, 10);
  EXPECT_EQ(a.inv_freq, b.inv_freq);
  EXPECT_EQ(a.magnitude, 1);
  EXPECT_EQ(b.magnitude, 1);
}

TEST(ConfigVersions, GgufLinearUnderOldAndNewNames) {
  for (const char* key : {"llama.rope.scale_linear", "llama.rope.scaling.factor"}) {
    EditableCheckpoint e = gguf("mixtral");
    e.set_number(key, 3);
    EXPECT_EQ(config_of(e).rope.kind, RopeKind::kLinear) << key;
    EXPECT_EQ(config_of(e).rope.factor, 3) << key;
  }
}

// llama3 frequencies reach GGUF as divisors, computed by the converter; here by hand from HF's rule for the fixture's
// numbers.
TEST(ConfigVersions, GgufRopeFreqsAreDivisors) {
  EditableCheckpoint e = gguf("mixtral");
  e.set_number("llama.rope.freq_base", 500000);
  const Config json = config_of(hf("mixtral-rope-llama3"));
  const std::vector<double> wanted = rope_frequencies(json.rope, 512, 10).inv_freq;
  std::vector<float> divisors;
  for (size_t i = 0; i < 8; ++i) divisors.push_back(float(std::pow(500000.0, -double(i) / 8) / wanted[i]));
  e.put_f32("rope_freqs.weight", {8}, divisors);
  const std::vector<double> found = rope_frequencies(config_of(e).rope, 512, 10).inv_freq;
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(found[i], wanted[i], 1e-6 * wanted[i]);
  EXPECT_TRUE(binding_of(e).skipped.empty());
}

// ---- ids of the catalogue ----

TEST(ConfigHostile, A13_MissingOrImpossibleKeysAreNamed) {
  struct {
    const char* file;
    std::vector<const char*> keys;
  } cases[] = {
      {"mixtral",
       {"block_count", "embedding_length", "attention.head_count", "attention.layer_norm_rms_epsilon",
        "expert_used_count", "feed_forward_length", "context_length"}},
      {"qwen3_moe", {"expert_count", "expert_used_count", "expert_feed_forward_length", "block_count"}},
      {"deepseek_v3", {"attention.kv_lora_rank", "rope.dimension_count", "expert_feed_forward_length", "expert_count"}},
      {"gpt_oss", {"attention.sliding_window", "expert_count", "rope.scaling.factor"}},
      {"glm4_moe", {"expert_feed_forward_length", "block_count"}},
  };
  for (const auto& c : cases) {
    EditableCheckpoint original = gguf(c.file);
    const std::string prefix = original.gguf.metadata.str("general.architecture") + ".";
    for (const char* key : c.keys) {
      EditableCheckpoint e = original;
      e.erase(prefix + key);
      EXPECT_MODEL_ERROR(config_of(e), key, ".gguf");
    }
  }
  EditableCheckpoint e = gguf("qwen3_moe");
  e.set("qwen3moe.block_count", 0);
  EXPECT_MODEL_ERROR(config_of(e), "qwen3moe.block_count", "found 0");
  e.set("qwen3moe.block_count", 2000000000);
  EXPECT_MODEL_ERROR(config_of(e), "qwen3moe.block_count", "2000000000");
  e = gguf("qwen3_moe");
  e.set("qwen3moe.expert_used_count", 17);
  EXPECT_MODEL_ERROR(config_of(e), "qwen3moe.expert_used_count", "expert_count", "found 17");
  e = gguf("mixtral");
  e.erase("general.architecture");
  EXPECT_MODEL_ERROR(config_of(e), "general.architecture");
}

TEST(ConfigHostile, A13_HuggingFaceKeys) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                          "num_experts_per_tok", "moe_intermediate_size", "max_position_embeddings"}) {
    EditableCheckpoint e = hf("qwen3_moe");
    e.config.erase(key);
    EXPECT_MODEL_ERROR(config_of(e), "config.json", key);
  }
  EditableCheckpoint e = hf("qwen3_moe");
  e.config.erase("num_local_experts");
  EXPECT_MODEL_ERROR(config_of(e), "num_experts or num_local_experts or n_routed_experts");
  e = hf("qwen3_moe");
  e.config["num_experts_per_tok"] = 17;
  EXPECT_MODEL_ERROR(config_of(e), "num_experts_per_tok", "1 to 16", "17");
  e = hf("qwen3_moe");
  e.config["num_hidden_layers"] = 0;
  EXPECT_MODEL_ERROR(config_of(e), "num_hidden_layers", "found 0");
}

TEST(ConfigHostile, B10_YarnWithoutOriginalLengthAndWithExtraKeys) {
  EditableCheckpoint e = hf("deepseek_v3-yarn-mscale");
  e.config["rope_parameters"].erase("original_max_position_embeddings");
  e.config["rope_parameters"]["attn_factor"] = 1.0;
  Config c = config_of(e);
  EXPECT_EQ(c.rope.original_max_positions, 512);  // max_position_embeddings
  EXPECT_TRUE(has_note(c, "original_max_position_embeddings"));
  EXPECT_TRUE(has_note(c, "attn_factor"));
  e.config["rope_parameters"]["rope_type"] = "hyperrope";
  EXPECT_MODEL_ERROR(config_of(e), "config.json", "rope_type", "hyperrope", "yarn, longrope, llama3");
}

TEST(ConfigHostile, B11_LongropeFactorsAbsentOrOfWrongLength) {
  for (const char* key : {"short_factor", "long_factor"}) {
    EditableCheckpoint e = hf("phimoe-longrope");
    e.config["rope_parameters"].erase(key);
    EXPECT_MODEL_ERROR(config_of(e), "config.json", key, "8 rotated pairs");
    e.config["rope_parameters"][key] = {1.0, 2.0, 3.0};
    EXPECT_MODEL_ERROR(config_of(e), key, "expected 8", "found 3");
    e.config["rope_parameters"][key] = {1, 1, 1, 1, 1, 1, 1, 0};
    EXPECT_MODEL_ERROR(config_of(e), key, "positive");
  }
}

TEST(ConfigHostile, B11_GgufLongropeNeedsBothFactorTensors) {
  EditableCheckpoint e = gguf("qwen3_moe");
  e.put_f32("rope_factors_short.weight", {16}, std::vector<float>(16, 1.5f));
  EXPECT_MODEL_ERROR(config_of(e), "rope_factors_long.weight", "longrope");
  e.put_f32("rope_factors_long.weight", {16}, std::vector<float>(16, 2.5f));
  e.set("qwen3moe.rope.scaling.original_context_length", 64);
  Config c = config_of(e);
  EXPECT_EQ(c.rope.kind, RopeKind::kLongrope);
  EXPECT_EQ(c.rope.long_factor, std::vector<double>(16, 2.5));
  EXPECT_EQ(c.rope.factor, 8);
  e.put_f32("rope_factors_long.weight", {3}, {1, 2, 3});
  EXPECT_MODEL_ERROR(config_of(e), "rope_factors_long.weight", "16", "[3]");
}

TEST(ConfigHostile, C2_RouterDefaultsByFamily) {
  // Hugging Face: the fixtures already lack scoring_func and topk_method; norm_topk_prob and the scale may be absent
  // too.
  EditableCheckpoint e = hf("deepseek_v3");
  for (const char* key : {"norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group"}) e.config.erase(key);
  e.config["n_routed_experts"] = 16;
  Config c = config_of(e);
  EXPECT_EQ(c.router.score, RouterScore::kSigmoid);
  EXPECT_TRUE(c.router.renormalise);
  EXPECT_FLOAT_EQ(c.router.scale, 2.5f);
  EXPECT_EQ(c.router.groups, 8);
  EXPECT_EQ(c.router.top_groups, 4);
  EXPECT_TRUE(has_note(c, "scoring_func"));
  for (const char* name : {"qwen2_moe", "qwen3_moe", "olmoe"}) {
    EditableCheckpoint q = hf(name);
    q.config.erase("norm_topk_prob");
    EXPECT_FALSE(config_of(q).router.renormalise) << name;
  }
  EditableCheckpoint v2 = hf("deepseek_v2-grouped");
  v2.config.erase("topk_method");
  EXPECT_EQ(config_of(v2).router.groups, 1);
  EXPECT_EQ(config_of(v2).router.score, RouterScore::kSoftmax);
}

TEST(ConfigHostile, C2_GgufWithoutGatingFunction) {
  EditableCheckpoint e = gguf("deepseek_v3");
  e.erase("deepseek2.expert_gating_func");
  Config c = config_of(e);  // the selection bias tells V3 from V2
  EXPECT_EQ(c.arch, "deepseek_v3");
  EXPECT_EQ(c.router.score, RouterScore::kSigmoid);
  EXPECT_TRUE(has_note(c, "expert_gating_func"));
  e.take("blk.1.exp_probs_b.bias");
  e.take("blk.2.exp_probs_b.bias");
  c = config_of(e);
  EXPECT_EQ(c.arch, "deepseek_v2");
  EXPECT_EQ(c.router.score, RouterScore::kSoftmax);
  e = gguf("glm4_moe");
  e.erase("glm4moe.expert_gating_func");
  EXPECT_EQ(config_of(e).router.score, RouterScore::kSigmoid);
  e.set("glm4moe.expert_gating_func", 1);  // the key overrides the family
  EXPECT_EQ(config_of(e).router.score, RouterScore::kSoftmax);
  e.set("glm4moe.expert_gating_func", 9);
  EXPECT_MODEL_ERROR(config_of(e), "glm4moe.expert_gating_func", "9", "2 sigmoid");
}

TEST(ConfigHostile, C12_LayerKindsFromConfig) {
  EditableCheckpoint e = hf("qwen3_moe");
  e.config["num_hidden_layers"] = 6;
  e.config["decoder_sparse_step"] = 2;
  e.config["mlp_only_layers"] = {3};
  auto sparse = [](const Config& c) {
    std::string out;
    for (const LayerConfig& l : c.layers) out += l.sparse ? 'S' : 'D';
    return out;
  };
  EXPECT_EQ(sparse(config_of(e)), "DSDDDS");
  e.config["mlp_layer_types"] = {"dense", "sparse", "sparse", "dense", "sparse", "dense"};
  EXPECT_EQ(sparse(config_of(e)), "DSSDSD");
  EditableCheckpoint d = hf("deepseek_v3");
  d.config["num_hidden_layers"] = 6;
  d.config["first_k_dense_replace"] = 2;
  d.config["moe_layer_freq"] = 2;
  EXPECT_EQ(sparse(config_of(d)), "DDSDSD");
  d.config["first_k_dense_replace"] = 6;
  EXPECT_MODEL_ERROR(config_of(d), "no layer has experts");
  d.config["moe_layer_freq"] = 0;
  EXPECT_MODEL_ERROR(config_of(d), "moe_layer_freq", "found 0");
}

TEST(ConfigHostile, D9_EosIsTheUnionOfBothFiles) {
  EditableCheckpoint e = hf("qwen3_moe");
  e.config["eos_token_id"] = {7, 9};
  e.generation_config["eos_token_id"] = {9, 11};
  EXPECT_EQ(config_of(e).eos, (std::vector<TokenId>{7, 9, 11}));
  e.config["eos_token_id"] = nullptr;
  e.generation_config["eos_token_id"] = 5;
  EXPECT_EQ(config_of(e).eos, std::vector<TokenId>{5});
  e.generation_config = nullptr;
  EXPECT_TRUE(config_of(e).eos.empty());
  e.config["eos_token_id"] = "</s>";
  EXPECT_MODEL_ERROR(config_of(e), "eos_token_id", "</s>");
  EditableCheckpoint g = gguf("qwen3_moe");
  g.set("tokenizer.ggml.eos_token_id", 3);
  g.set("tokenizer.ggml.eot_token_id", 4);
  EXPECT_EQ(config_of(g).eos, (std::vector<TokenId>{3, 4}));
}

// ---- unknown kinds, wrong types ----

TEST(ConfigHostile, UnknownKindsNameWhatIsKnown) {
  EditableCheckpoint e = hf("mixtral");
  e.config["model_type"] = "mixtral9";
  EXPECT_MODEL_ERROR(config_of(e), "config.json", "model_type", "mixtral9", "qwen3_moe", "deepseek_v3", "gpt_oss");
  e.config.erase("model_type");
  EXPECT_MODEL_ERROR(config_of(e), "model_type", "nothing");
  e = hf("mixtral");
  e.config["hidden_act"] = "relu6";
  EXPECT_MODEL_ERROR(config_of(e), "hidden_act", "relu6", "silu");
  e = hf("deepseek_v3");
  e.config["scoring_func"] = "tanh";
  EXPECT_MODEL_ERROR(config_of(e), "scoring_func", "tanh", "sigmoid");
  e = hf("deepseek_v3");
  e.config["topk_method"] = "best";
  EXPECT_MODEL_ERROR(config_of(e), "topk_method", "best", "noaux_tc");
  e = hf("gpt_oss");
  e.config["layer_types"][0] = "chunked_attention";
  EXPECT_MODEL_ERROR(config_of(e), "layer_types", "chunked_attention", "sliding_attention");
  e.config["layer_types"] = {"full_attention"};
  EXPECT_MODEL_ERROR(config_of(e), "layer_types", "expected 4", "found 1");
  EditableCheckpoint g = gguf("mixtral");
  g.set_text("general.architecture", "mamba");
  EXPECT_MODEL_ERROR(config_of(g), "general.architecture", "mamba", "qwen3moe");
  g = gguf("gpt_oss");
  g.set_text("gpt-oss.rope.scaling.type", "spiral");
  EXPECT_MODEL_ERROR(config_of(g), "gpt-oss.rope.scaling.type", "spiral", "yarn");
}

TEST(ConfigHostile, DenseLlamaIsNotMixtral) {
  EditableCheckpoint g = gguf("mixtral");
  g.erase("llama.expert_count");
  EXPECT_MODEL_ERROR(config_of(g), "llama.expert_count", "dense", "Mixture-of-Experts");
}

TEST(ConfigHostile, QuantizationKindsAreRefusedByName) {
  EditableCheckpoint e = hf("qwen3_moe");
  e.config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  EXPECT_MODEL_ERROR(config_of(e), "quantization_config", "awq", "mxfp4");
  e.config["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_MODEL_ERROR(config_of(e), "weight_block_size", "missing");
  e.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {64, 128}}};
  EXPECT_MODEL_ERROR(config_of(e), "weight_block_size", "[128, 128]", "[64,128]");
  e.config["quantization_config"] = {
      {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"activation_scheme", "static"}};
  EXPECT_MODEL_ERROR(config_of(e), "activation_scheme", "static");
  e.config["quantization_config"] = nullptr;
  EXPECT_EQ(config_of(e).arch, "qwen3_moe");
}

TEST(ConfigHostile, WrongTypesNameTheKey) {
  const json wrong[] = {"text", json::array({1}), json::object({{"a", 1}}), true};
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "max_position_embeddings"})
    for (const json& value : wrong) {
      EditableCheckpoint e = hf("qwen3_moe");
      e.config[key] = value;
      EXPECT_MODEL_ERROR(config_of(e), "config.json", key, "expected");
    }
  EditableCheckpoint e = hf("qwen3_moe");
  e.config["rms_norm_eps"] = "small";
  EXPECT_MODEL_ERROR(config_of(e), "rms_norm_eps", "number");
  e = hf("qwen3_moe");
  e.config["tie_word_embeddings"] = 1;
  EXPECT_MODEL_ERROR(config_of(e), "tie_word_embeddings", "true or false");
  e = hf("qwen3_moe");
  e.config["rope_parameters"] = 5;
  EXPECT_MODEL_ERROR(config_of(e), "rope_parameters", "object");
  e = hf("qwen3_moe");
  e.config["hidden_size"] = 64.5;
  EXPECT_MODEL_ERROR(config_of(e), "hidden_size", "integer", "64.5");
  e.config["hidden_size"] = 64.0;
  EXPECT_EQ(config_of(e).hidden, 64);
  e.config["hidden_size"] = 18446744073709551615ull;
  EXPECT_MODEL_ERROR(config_of(e), "hidden_size", "integer");
}

TEST(ConfigHostile, GgufListsByLayer) {
  EditableCheckpoint e = gguf("qwen3_moe");
  e.set_list("qwen3moe.attention.head_count_kv", {2, 2, 2});
  EXPECT_EQ(config_of(e).kv_heads, 2);
  e.set_list("qwen3moe.attention.head_count_kv", {2, 1, 2});
  EXPECT_MODEL_ERROR(config_of(e), "qwen3moe.attention.head_count_kv", "differ by layer");
  e.set_list("qwen3moe.attention.head_count_kv", {});
  EXPECT_MODEL_ERROR(config_of(e), "qwen3moe.attention.head_count_kv", "empty");
}

// Whatever one value becomes, the answer is a config that passed its checks or a ModelError: no crash, no overflow, no
// endless loop.
TEST(ConfigHostile, AnySingleChangeIsAnsweredCleanly) {
  const json values[] = {nullptr,
                         0,
                         -1,
                         1,
                         3,
                         2147483647,
                         -2147483648LL,
                         9223372036854775807LL,
                         1e300,
                         -0.5,
                         "x",
                         true,
                         json::array(),
                         json::array({0, -5, 1e9}),
                         json::object()};
  int accepted = 0, refused = 0;
  for (const char* name :
       {"mixtral", "qwen2_moe", "qwen3_moe-mixed-layers", "deepseek_v3-yarn-mscale", "gpt_oss", "phimoe-longrope",
        "granitemoe", "glm4_moe", "mixtral-rope-llama3", "mixtral-rope-dynamic"}) {
    const Checkpoint original = open_checkpoint(hf_fixture(name));
    std::vector<json::json_pointer> places;
    for (const auto& [key, value] : original.config.items()) {
      places.push_back(json::json_pointer("/" + key));
      if (value.is_object())
        for (const auto& [inner, unused] : value.items()) places.push_back(json::json_pointer("/" + key + "/" + inner));
    }
    Checkpoint c;
    c.path = original.path;
    c.generation_config = original.generation_config;
    for (const auto& place : places)
      for (const json& value : values) {
        c.config = original.config;
        c.config[place] = value;
        try {
          Config config = config_of(c);
          EXPECT_GT(config.router.top_k, 0);
          ++accepted;
        } catch (const ModelError&) {
          ++refused;
        }
      }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

TEST(ConfigHostile, AnySingleGgufChangeIsAnsweredCleanly) {
  using T = GgufValue::Type;
  std::vector<GgufValue> values;
  for (int64_t v : {0LL, 1LL, -1LL, 3LL, 2147483647LL, 4294967295LL}) values.push_back({T::kI32, T::kU32, v});
  values.push_back({T::kU64, T::kU32, uint64_t(1) << 63});
  values.push_back({T::kF32, T::kU32, std::numeric_limits<double>::quiet_NaN()});
  values.push_back({T::kF32, T::kU32, 1e30});
  values.push_back({T::kString, T::kU32, std::string("x")});
  values.push_back({T::kArray, T::kI32, std::vector<int64_t>{}});
  int accepted = 0, refused = 0;
  for (const char* name : {"mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss", "granitemoe", "glm4_moe"}) {
    Checkpoint c = open_checkpoint(gguf_fixture(name));
    const auto original = c.gguf.metadata.values;
    for (const auto& [key, unused] : original)
      for (const GgufValue& value : values) {
        c.gguf.metadata.values = original;
        c.gguf.metadata.values[key] = value;
        try {
          Config config = config_of(c);
          EXPECT_GT(config.hidden, 0);
          ++accepted;
        } catch (const ModelError&) {
          ++refused;
        }
      }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace ef::testing
