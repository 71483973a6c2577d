// DeepSeek-V2, V2-Lite, V2.5: latent attention, softmax before group-limited top-k (a group's score is its best
// expert's).
#include "expertflow/model/latent_common.h"

namespace ef {

namespace {

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = latent_from_hf("deepseek_v2", config, generation, true, 0);
  hf_deepseek_router(out, config, {"softmax", "greedy", false, 1.0, 1, 1});
  // The published model code scales only weights that it does not normalise.
  if (out.router.renormalise) out.router.scale = 1;
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = latent_from_gguf("deepseek_v2", keys, directory);
  out.router.score = gguf_router_score(keys, RouterScore::kSoftmax, out.notes);
  out.router.group_score = GroupScore::kMax;
  gguf_router_weights(out, keys, false);
  return out;
}

bool accepts(const GgufMetadata& metadata, const TensorDirectory& directory) {
  return !is_deepseek_v3_gguf(metadata, directory);
}

constexpr std::string_view kHfTypes[] = {"deepseek_v2"};
constexpr std::string_view kGgufArchs[] = {"deepseek2"};

}  // namespace

Architecture deepseek_v2() {
  return {"deepseek_v2",  kHfTypes,      kGgufArchs,   from_hf,        from_gguf,
          kLatentTensors, kHfMlpExperts, kGgufExperts, kLatentIgnored, accepts};
}

}  // namespace ef
