// Mixtral (8x7B, 8x22B). GGUF files call it "llama"; the converter permutes q and k there, so that rope pairs are
// neighbours.
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr std::array kOwn = {
    TensorSpec{Role::kRouter, "model.layers.{l}.block_sparse_moe.gate.weight|model.layers.{l}.mlp.gate.weight",
               "blk.{l}.ffn_gate_inp.weight", Dim::kExperts, Dim::kHidden, false, In::kSparseLayers},
};
constexpr auto kTensors = join(kModelTensors, kAttention, kOwn);

void set_router(Config& out) {
  out.router.score = RouterScore::kSoftmax;
  out.router.renormalise = true;
}

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("mixtral", config, generation, {.rope_theta = 1e6, .norm_eps = 1e-5});
  set_router(out);
  out.expert_ffn = config.integer("intermediate_size");
  hf_windows(out, config, config.integer_or("sliding_window", 0));
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = gguf_common("mixtral", keys, directory, {.rope_interleaved = true});
  set_router(out);
  out.expert_ffn =
      keys.integer(keys.has("expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length");
  int window = keys.integer_or("attention.sliding_window", 0);
  for (LayerConfig& layer : out.layers) layer.window = window;
  return out;
}

bool has_experts(const GgufMetadata& metadata, const TensorDirectory&) {
  return metadata.integer_or("llama.expert_count", 0) > 0;
}

constexpr std::string_view kHfTypes[] = {"mixtral"};
constexpr std::string_view kGgufArchs[] = {"llama"};

}  // namespace

Architecture mixtral() {
  return {"mixtral",    kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfBlockSparseExperts,
          kGgufExperts, kIgnored, has_experts};
}

}  // namespace ef
