#include "expertflow/model/arch.h"

namespace ef {

int64_t dim_value(const Config& c, Dim dim) {
  const LatentConfig latent = c.latent.value_or(LatentConfig{});
  const int64_t heads = c.heads;
  const int64_t q = heads * c.head_dim, kv = int64_t(c.kv_heads) * c.head_dim;
  switch (dim) {
    case Dim::kNone:
    case Dim::kOne:
      return 1;
    case Dim::kHidden:
      return c.hidden;
    case Dim::kVocab:
      return c.vocab;
    case Dim::kHeads:
      return heads;
    case Dim::kHeadDim:
      return c.head_dim;
    case Dim::kQ:
      return q;
    case Dim::kKv:
      return kv;
    case Dim::kQLora:
      return latent.q_lora;
    case Dim::kKvLora:
      return latent.kv_lora;
    case Dim::kKvA:
      return int64_t(latent.kv_lora) + latent.rope;
    case Dim::kQkv:
      return q + 2 * kv;
    case Dim::kRopePairs:
      return c.rope.rotary_dim / 2;
    case Dim::kKvB:
      return heads * (int64_t(latent.nope) + latent.v_dim);
    case Dim::kKB:
      return heads * latent.kv_lora;
    case Dim::kVB:
      return heads * latent.v_dim;
    case Dim::kNope:
      return latent.nope;
    case Dim::kAttnOut:
      return c.latent ? heads * latent.v_dim : q;
    case Dim::kExperts:
      return c.router.experts;
    case Dim::kDenseFfn:
      return c.dense_ffn;
    case Dim::kExpertFfn:
      return c.expert_ffn;
    case Dim::kExpertFfn2:
      return 2 * int64_t(c.expert_ffn);
    case Dim::kSharedFfn:
      return c.shared_ffn;
  }
  return 0;
}

std::string_view dim_name(Dim dim) {
  switch (dim) {
    case Dim::kNone:
      return "";
    case Dim::kOne:
      return "one";
    case Dim::kHidden:
      return "hidden";
    case Dim::kVocab:
      return "vocabulary";
    case Dim::kHeads:
      return "heads";
    case Dim::kHeadDim:
      return "head_dim";
    case Dim::kQ:
      return "heads * head_dim";
    case Dim::kKv:
      return "kv_heads * head_dim";
    case Dim::kQLora:
      return "q_lora_rank";
    case Dim::kKvLora:
      return "kv_lora_rank";
    case Dim::kKvA:
      return "kv_lora_rank + rope head_dim";
    case Dim::kQkv:
      return "(heads + 2 kv_heads) * head_dim";
    case Dim::kRopePairs:
      return "rotated pairs";
    case Dim::kKvB:
      return "heads * (nope + v head_dim)";
    case Dim::kKB:
      return "heads * kv_lora_rank";
    case Dim::kVB:
      return "heads * v head_dim";
    case Dim::kNope:
      return "nope head_dim";
    case Dim::kAttnOut:
      return "heads * value head_dim";
    case Dim::kExperts:
      return "experts";
    case Dim::kDenseFfn:
      return "dense ffn";
    case Dim::kExpertFfn:
      return "expert ffn";
    case Dim::kExpertFfn2:
      return "2 * expert ffn";
    case Dim::kSharedFfn:
      return "shared ffn";
  }
  return "";
}

bool TensorSpec::is_norm() const {
  switch (role) {
    case Role::kFinalNorm:
    case Role::kFinalNormBias:
    case Role::kAttnNorm:
    case Role::kAttnNormBias:
    case Role::kFfnNorm:
    case Role::kFfnNormBias:
    case Role::kQNorm:
    case Role::kKNorm:
    case Role::kQANorm:
    case Role::kKvANorm:
      return true;
    default:
      return false;
  }
}

}  // namespace ef
