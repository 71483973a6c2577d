// Which tensor of a GGUF gets which format: llama.cpp's rules (llama-quant.cpp), so that files hold what people expect
// of a type's name.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/quant/formats.h"

namespace ef {

/// A name that --type takes.
struct QuantType {
  std::string_view name, alias;  ///< "q4_k_m", "q4_k"; no alias: ""
  Format base;
  int file_type;              ///< llama_ftype
  bool more_bits = false;     ///< attn_v and ffn_down of some layers in Q6_K
  bool experts_only = false;  ///< base for routed experts alone, everything else Q8_0
  std::string_view help;
};
std::span<const QuantType> quant_types();
/// ConfigError listing the names.
const QuantType& find_quant_type(std::string_view flag, std::string_view name);
/// A plain format for --output-type and --token-embedding-type; ConfigError otherwise.
Format find_plain_type(std::string_view flag, std::string_view name);

struct QuantRules {
  const QuantType* type = nullptr;
  std::optional<Format> output, token_embedding;
  int layers = 0, experts = 0;
  bool tied = false;  ///< no output.weight: the token embedding stands in for it

  struct Choice {
    Format format;
    bool fallback = false;  ///< rows are no multiple of the block of the format that the rule named
    Format wanted;          ///< that format
  };
  /// nullopt: the tensor stays as it is (vectors, norms, biases, routers).
  std::optional<Choice> choose(const std::string& name, const std::vector<int64_t>& shape) const;
};

}  // namespace ef
