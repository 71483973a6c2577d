// Reading config.json. Keys go by several names across library versions; defaults differ by family. Sources of the
// defaults: the families' configuration classes in Hugging Face transformers and the model code published with the
// weights.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/model/config.h"

namespace ef {

/// A JSON object with typed access. Keys may hold alternatives separated by '|', the first present one counts. null is
/// absent. A wrong type, or a missing key that has no default, is a ModelError naming file, key, expected and found.
class HfJson {
 public:
  HfJson(const nlohmann::json& object, std::string where);  ///< where: "config.json", or "config.json: rope_scaling"
  bool has(std::string_view keys) const { return find(keys) != nullptr; }
  const nlohmann::json* find(std::string_view keys) const;
  int integer(std::string_view keys) const;
  int integer_or(std::string_view keys, int otherwise) const;
  double number(std::string_view keys) const;
  double number_or(std::string_view keys, double otherwise) const;
  std::optional<double> number_if(std::string_view keys) const;
  bool boolean_or(std::string_view keys, bool otherwise) const;
  std::string text_or(std::string_view keys, std::string_view otherwise) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<int> integers(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;
  const nlohmann::json& object() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& required(std::string_view keys) const;
  const nlohmann::json& object_;
  std::string where_;
};

/// What an absent key means in a family.
struct HfDefaults {
  double rope_theta = 10000;
  double partial_rotary = 1;
  double norm_eps = 1e-6;
  bool rope_interleaved = false;
};

/// Everything that the families share: sizes, rope, activation, tokens, quantisation refused if unknown. All layers
/// sparse with full attention, attention_scale 1/sqrt(head_dim); the router holds experts and top_k only. Latent models
/// pass head_dim (of the rotated part) themselves.
Config hf_common(std::string_view arch, const HfJson& config, const nlohmann::json& generation_config,
                 const HfDefaults& defaults, std::optional<int> head_dim = {});

/// sliding_window on the layers that layer_types names, else on those from first_layer on.
void hf_windows(Config& out, const HfJson& config, int window, int first_layer = 0);
/// mlp_only_layers and decoder_sparse_step (Qwen); mlp_layer_types if present.
void hf_sparse_step(Config& out, const HfJson& config);
/// first_k_dense_replace and moe_layer_freq (DeepSeek, GLM); mlp_layer_types if present.
void hf_leading_dense(Config& out, const HfJson& config, int default_leading);
/// scoring_func, topk_method, groups, renormalisation and scale of DeepSeek and GLM.
struct HfRouterDefaults {
  std::string_view scoring, method;
  bool renormalise;
  double scale;
  int groups, top_groups;
};
void hf_deepseek_router(Config& out, const HfJson& config, const HfRouterDefaults& defaults);

}  // namespace ef
