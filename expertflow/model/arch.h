// An architecture is data: how its config is read, and a table of its tensors with names in both file kinds and
// symbolic shapes. To add one: a file with an Architecture, a row in registry.cpp. Loading, checking, sizing and
// widening read the table.
#pragma once
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "expertflow/model/config.h"
#include "expertflow/weights/checkpoint.h"

namespace ef {

/// Symbolic extent of a tensor's axis; dim_value() gives the number for a Config.
enum class Dim : uint8_t {
  kNone,  ///< axis absent
  kOne,
  kHidden,
  kVocab,
  kHeads,  ///< attention heads (sinks)
  kHeadDim,
  kQ,   ///< heads * head_dim
  kKv,  ///< kv_heads * head_dim
  kQLora,
  kKvLora,
  kKvA,        ///< kv_lora + rope
  kQkv,        ///< kQ + 2 * kKv
  kRopePairs,  ///< rotary_dim / 2
  kKvB,        ///< heads * (nope + v_dim)
  kKB,         ///< heads * kv_lora   (GGUF attn_k_b, transposed: each head [kv_lora, nope])
  kVB,         ///< heads * v_dim     (GGUF attn_v_b)
  kNope,
  kAttnOut,  ///< heads * head_dim, or heads * v_dim if latent: input of the output projection
  kExperts,
  kDenseFfn,
  kExpertFfn,
  kExpertFfn2 /* gate and up in one axis */,
  kSharedFfn
};
int64_t dim_value(const Config& config, Dim dim);
std::string_view dim_name(Dim dim);  ///< for messages: "heads * head_dim"

enum class Role : uint8_t {
  kEmbed,
  kFinalNorm,
  kFinalNormBias,
  kHead,
  kHeadBias,
  kRopeFreqs,
  kAttnNorm,
  kAttnNormBias,
  kQ,
  kK,
  kV,
  kO,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,
  kKNorm,
  kSinks,
  kQkv,
  kQkvBias,  ///< fused q, k, v along rows, split at load
  kQA,
  kQANorm,
  kQB,
  kKvA,
  kKvANorm,
  kKvB,
  kKB,
  kVB,
  kFfnNorm,
  kFfnNormBias,
  kRouter,
  kRouterBias,
  kSelectionBias,
  kDenseGate,
  kDenseUp,
  kDenseDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedExpertGate,
  kCount
};

/// Names may hold {l} (layer) and alternatives separated by '|'. Matrices are [rows, cols]; vectors have rows = kNone.
/// A tensor with an extent that is 0 in this config (no shared experts, no q_lora) is not expected.
struct TensorSpec {
  Role role;
  const char* hf;  ///< nullptr: not in this file kind
  const char* gguf;
  Dim rows, cols;
  bool optional = false;  ///< absent is fine (a bias, a tied head)
  enum class In : uint8_t { kModel, kEveryLayer, kSparseLayers, kDenseLayers } in = In::kEveryLayer;
  bool (*applies)(const Config&) = nullptr;  ///< null: always
  /// Which norm feeds or is this tensor; used by widening: norms over the hidden axis are divided by the tiling factor.
  bool hidden_norm() const { return rows == Dim::kNone && cols == Dim::kHidden && is_norm(); }
  bool is_norm() const;
};

/// How routed experts lie in the file. Names may hold {l} and {e}; a name without {e} is stacked over experts.
enum class ExpertFileLayout : uint8_t {
  kSeparate,                     ///< gate, up, down each [out, in]
  kGateUpRows,                   ///< one matrix [2 ffn, hidden]: gate rows, then up rows
  kGateUpInterleavedTransposed,  ///< gpt-oss BF16: [hidden, 2 ffn], columns gate, up, gate, up; down [ffn, hidden]
  kGateUpInterleavedMxfp4,       ///< gpt-oss MXFP4: _blocks and _scales, rows gate, up, gate, up
};
struct ExpertSpec {
  ExpertFileLayout layout = ExpertFileLayout::kSeparate;
  const char* gate;  ///< kSeparate; otherwise the fused tensor (kGateUpInterleavedMxfp4: without _blocks/_scales)
  const char* up;    ///< kSeparate only
  const char* down;
  const char* gate_bias = nullptr;  ///< fused layouts: the fused bias
  const char* up_bias = nullptr;
  const char* down_bias = nullptr;
};

struct Architecture {
  std::string_view name;                         ///< "qwen3_moe"
  std::span<const std::string_view> hf_types;    ///< model_type values
  std::span<const std::string_view> gguf_archs;  ///< general.architecture values
  Config (*from_hf)(const nlohmann::json& config, const nlohmann::json& generation_config);
  Config (*from_gguf)(const GgufMetadata& metadata, const TensorDirectory& directory);
  std::span<const TensorSpec> tensors;
  std::span<const ExpertSpec> hf_experts;  ///< tried in order; the first whose names exist is taken
  std::span<const ExpertSpec> gguf_experts;
  /// Name prefixes or substrings of tensors in real files that are skipped knowingly ("rotary_emb.inv_freq", ...).
  std::span<const std::string_view> ignored;
  /// Tells apart families that share a general.architecture ("llama" is Mixtral only with experts); null: accepts all.
  bool (*accepts_gguf)(const GgufMetadata& metadata, const TensorDirectory& directory) = nullptr;
};

std::span<const Architecture> architectures();  ///< registry.cpp: the one table
/// ModelError: names the file, the model_type or architecture found, and lists the known ones.
const Architecture& find_architecture(const Checkpoint& checkpoint);
Config read_config(const Architecture& arch, const Checkpoint& checkpoint);  ///< parses and validates

/// Ranges that no code should need to doubt later (counts positive, top_k <= experts, heads divisible ...); names the
/// key.
void validate(const Config& config, const std::string& file);

}  // namespace ef
