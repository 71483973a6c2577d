// What a model is: numbers and enums only. A variant is data here, never a subclass.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "expertflow/backend/backend.h"

namespace ef {

inline constexpr int kMaxLayers = 4096;  ///< more is refused: no allocation follows an unchecked count

enum class RopeKind : uint8_t { kNone, kDefault, kLinear, kDynamic, kYarn, kLongrope, kLlama3 };

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int rotary_dim = 0;        ///< dims of a head that are rotated (partial_rotary_factor applied)
  bool interleaved = false;  ///< pairs (2i, 2i+1) rather than (i, i + rotary_dim/2)
  double factor = 1.0;
  int original_max_positions = 0;
  // yarn
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor;  ///< given explicitly, else derived by kind
  double mscale = 0, mscale_all_dim = 0;
  // llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  // longrope: factors per pair; the magnitude of cos and sin in each regime
  std::vector<double> short_factor, long_factor;
  bool long_frequencies =
      true;  ///< past the original positions the long factors apply; false: the short ones at any length
  std::optional<double> short_mscale, long_mscale;
  /// GGUF rope_freqs.weight: divisors of each pair's frequency, used instead of the kind's own rule
  std::vector<double> freq_divisors;
};

struct RouterConfig {
  RouterScore score = RouterScore::kSoftmax;
  int experts = 0, top_k = 0;
  int groups = 1, top_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  bool renormalise = false;
  float renormalise_eps = 0.f;
  float scale = 1.f;
  float jitter_eps = 0.01f;
};

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,
  kWhole
};  ///< weight [head_dim] on each head, or [heads * head_dim] on all

struct LayerConfig {
  bool sparse = true;  ///< MoE block, else dense FFN
  int window = 0;      ///< sliding window in tokens, 0: full attention
};

/// Multi-head latent attention (DeepSeek-V2/V3); absent otherwise.
struct LatentConfig {
  int q_lora = 0;  ///< 0: a full q projection
  int kv_lora = 0;
  int nope = 0, rope = 0, v_dim = 0;  ///< per head
};

struct Config {
  std::string arch;  ///< row of model/registry.cpp
  int vocab = 0, hidden = 0;
  int heads = 0, kv_heads = 0;  ///< latent: kv_heads is 1, the compressed key that all heads share
  int head_dim = 0;             ///< of q and k (latent: nope + rope); v too unless latent
  std::optional<LatentConfig> latent;
  std::vector<LayerConfig> layers;
  int skipped_layers = 0;  ///< multi-token-prediction layers in the file, skipped knowingly
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-6f;
  QkNorm qk_norm = QkNorm::kNone;
  bool sinks = false;  ///< attention sinks per head (gpt-oss)
  RopeConfig rope;
  float attention_scale = 0;  ///< factor on q k^T (1/sqrt(head_dim), multipliers and yarn's mscale included)
  float clip_qkv = 0;         ///< 0: none
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1;  ///< logits are multiplied by logit_scale
  bool tied_embeddings = false;
  RouterConfig router;
  Activation activation;
  int dense_ffn = 0;         ///< width of dense layers' FFN
  int expert_ffn = 0;        ///< width of one routed expert
  int shared_ffn = 0;        ///< width of all shared experts together, 0: none
  bool shared_gate = false;  ///< sigmoid(gate . x) on the shared expert's output
  int context_length = 0;    ///< positions the model was made for
  std::vector<TokenId> eos;  ///< union of config and generation_config (the tokenizer may add its own)
  std::optional<TokenId> bos;
  // Which tensors the file must hold beside those of every model of the family (TensorSpec::applies).
  bool qkv_bias = false, o_bias = false, head_bias = false, selection_bias = false;
  bool fused_qkv = false;   ///< GGUF attn_qkv
  bool split_kv_b = false;  ///< GGUF attn_k_b and attn_v_b rather than one attn_kv_b
  /// Choices worth a log line: defaults taken by family, keys ignored. For people; nothing reads them.
  std::vector<std::string> notes;

  int sparse_layers() const;
  int q_width() const { return heads * head_dim; }
};

}  // namespace ef
