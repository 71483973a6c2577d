// Reading a config from GGUF metadata. Keys are "{architecture}.{suffix}"; a missing or impossible one is named in the
// error. Definition of the keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/model/config.h"
#include "expertflow/weights/gguf.h"
#include "expertflow/weights/tensor_directory.h"

namespace ef {

/// The keys of one architecture, without their prefix.
class GgufKeys {
 public:
  explicit GgufKeys(const GgufMetadata& metadata);
  std::string key(std::string_view suffix) const { return prefix_ + std::string(suffix); }
  bool has(std::string_view suffix) const { return metadata_.contains(key(suffix)); }
  /// Integers of 32 bits. Lists of one value for every layer count as that value; lists that differ are refused.
  int integer(std::string_view suffix) const;
  int integer_or(std::string_view suffix, int otherwise) const;
  double number(std::string_view suffix) const { return metadata_.number(key(suffix)); }
  double number_or(std::string_view suffix, double otherwise) const {
    return metadata_.number_or(key(suffix), otherwise);
  }
  bool boolean_or(std::string_view suffix, bool otherwise) const {
    return metadata_.boolean_or(key(suffix), otherwise);
  }
  std::string text_or(std::string_view suffix, std::string_view otherwise) const {
    return metadata_.str_or(key(suffix), otherwise);
  }
  const GgufMetadata& metadata() const { return metadata_; }
  const std::string& file() const { return metadata_.file; }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
};

struct GgufDefaults {
  bool rope_interleaved = false;  ///< the converter permutes q and k of llama and granitemoe; deepseek2 is so by itself
  bool yarn_truncate = true;
  const char* norm_eps_key = "attention.layer_norm_rms_epsilon";
};

/// Everything that the families share; see hf_common. Latent models pass head_dim of the rotated part.
Config gguf_common(std::string_view arch, const GgufKeys& keys, const TensorDirectory& directory,
                   const GgufDefaults& defaults, std::optional<int> head_dim = {});

/// expert_gating_func, or the family's own way where the key is absent (which is noted).
RouterScore gguf_router_score(const GgufKeys& keys, RouterScore family, std::vector<std::string>& notes);
/// expert_weights_norm and expert_weights_scale.
void gguf_router_weights(Config& out, const GgufKeys& keys, bool renormalise);
void gguf_leading_dense(Config& out, const GgufKeys& keys);
/// Presence of blk.0.attn_q.bias and blk.0.attn_output.bias, attn_qkv and the like: GGUF has no keys for them.
void gguf_optional_tensors(Config& out, const TensorDirectory& directory);

}  // namespace ef
