// DeepSeek-V3, R1: latent attention, sigmoid scores, a bias that selects only, groups scored by their two best experts.
#include "expertflow/model/latent_common.h"

namespace ef {

namespace {

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = latent_from_hf("deepseek_v3", config, generation, config.boolean_or("rope_interleave", true), 3);
  hf_deepseek_router(out, config, {"sigmoid", "noaux_tc", true, 2.5, 8, 4});
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = latent_from_gguf("deepseek_v3", keys, directory);
  out.router.score = gguf_router_score(keys, RouterScore::kSigmoid, out.notes);
  out.router.group_score = GroupScore::kSumOfTop2;
  gguf_router_weights(out, keys, true);
  return out;
}

constexpr std::string_view kHfTypes[] = {"deepseek_v3"};
constexpr std::string_view kGgufArchs[] = {"deepseek2"};

}  // namespace

Architecture deepseek_v3() {
  return {"deepseek_v3",  kHfTypes,      kGgufArchs,   from_hf,        from_gguf,
          kLatentTensors, kHfMlpExperts, kGgufExperts, kLatentIgnored, is_deepseek_v3_gguf};
}

}  // namespace ef
