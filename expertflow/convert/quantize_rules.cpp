#include "expertflow/convert/quantize_rules.h"

#include <array>
#include <charconv>

#include "expertflow/base/errors.h"
#include "expertflow/convert/plan.h"

namespace ef {
namespace {

constexpr std::array kTypes = {
    QuantType{"q8_0", "", Format::kQ8_0, 7, false, false, "8.5 bits"},
    QuantType{"q6_k", "", Format::kQ6K, 18, false, false, "6.6 bits"},
    QuantType{"q5_k_m", "q5_k", Format::kQ5K, 17, true, false, "5.5 bits, attn_v and ffn_down of half the layers Q6_K"},
    QuantType{"q5_k_s", "", Format::kQ5K, 16, false, false, "5.5 bits"},
    QuantType{"q5_1", "", Format::kQ5_1, 9, false, false, "6 bits"},
    QuantType{"q5_0", "", Format::kQ5_0, 8, false, false, "5.5 bits"},
    QuantType{"q4_k_m", "q4_k", Format::kQ4K, 15, true, false, "4.5 bits, attn_v and ffn_down of half the layers Q6_K"},
    QuantType{"q4_k_s", "", Format::kQ4K, 14, false, false, "4.5 bits"},
    QuantType{"q4_1", "", Format::kQ4_1, 3, false, false, "5 bits"},
    QuantType{"q4_0", "", Format::kQ4_0, 2, false, false, "4.5 bits"},
    QuantType{"iq4_nl", "", Format::kIQ4NL, 25, false, false, "4.5 bits"},
    QuantType{"iq4_xs", "", Format::kIQ4XS, 30, false, false, "4.25 bits"},
    QuantType{"mxfp4", "", Format::kMXFP4, 38, false, true, "routed experts 4.25 bits, the rest Q8_0"},
    QuantType{"q3_k_s", "q3_k", Format::kQ3K, 11, false, false, "3.4 bits"},
    QuantType{"bf16", "", Format::kBF16, 32, false, false, "16 bits"},
    QuantType{"f16", "", Format::kF16, 1, false, false, "16 bits"},
    QuantType{"f32", "", Format::kF32, 0, false, false, "32 bits"},
};

bool contains(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

int layer_of(const std::string& name) {
  int layer = -1;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

/// The first and last eighth of the layers, and every third between.
bool wants_more_bits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/// For rows that are no multiple of 256: the nearest type with blocks of 32.
Format with_small_blocks(Format format) {
  switch (format) {
    case Format::kQ2K:
    case Format::kQ3K:
    case Format::kIQ4XS:
      return Format::kIQ4NL;
    case Format::kQ4K:
      return Format::kQ5_0;
    case Format::kQ5K:
      return Format::kQ5_1;
    case Format::kQ6K:
      return Format::kQ8_0;
    default:
      return Format::kF16;
  }
}

Format fitting(Format format, int64_t cols) {
  if (cols % format_info(format).block_elements != 0) format = with_small_blocks(format);
  return cols % format_info(format).block_elements != 0 ? Format::kF16 : format;
}

}  // namespace

std::span<const QuantType> quant_types() { return kTypes; }

const QuantType& find_quant_type(std::string_view flag, std::string_view name) {
  std::string known;
  for (const QuantType& type : kTypes) {
    if (name == type.name || (!type.alias.empty() && name == type.alias)) return type;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  fail<ConfigError>("{}: expected one of {} (q3_k, q4_k and q5_k are q3_k_s, q4_k_m and q5_k_m), found \"{}\"", flag,
                    known, name);
}

Format find_plain_type(std::string_view flag, std::string_view name) {
  const FormatInfo* info = find_format(name);
  EF_CHECK(info && info->quantize && info->ggml_type >= 0, ConfigError,
           "{}: expected a tensor type such as q8_0, q6_k, q4_k, f16 or bf16, found \"{}\"", flag, name);
  return info->format;
}

std::optional<QuantRules::Choice> QuantRules::choose(const std::string& name, const std::vector<int64_t>& shape) const {
  if (stays_f32_in_gguf(name, shape)) return std::nullopt;
  const bool quantised = format_info(type->base).block_elements > 1;
  const bool embedding = name == "token_embd.weight";
  const bool head = name == "output.weight" || (embedding && tied);
  Format format = type->base;
  if (embedding && token_embedding) {
    format = *token_embedding;
  } else if (head && output) {
    format = *output;
  } else if (type->experts_only) {
    if (!contains(name, "_exps.")) format = Format::kQ8_0;
  } else if (head && quantised && format != Format::kQ8_0) {
    format = shape.back() % format_info(Format::kQ6K).block_elements == 0 ? Format::kQ6K : Format::kQ8_0;
  } else if (type->more_bits && contains(name, "attn_v.weight")) {
    // With eight experts attention is a small part of the file.
    if (experts == 8)
      format = Format::kQ8_0;
    else if (wants_more_bits(layer_of(name), layers))
      format = Format::kQ6K;
  } else if (type->more_bits && contains(name, "attn_k.weight") && experts == 8) {
    format = Format::kQ8_0;
  } else if (type->more_bits && contains(name, "ffn_down") && wants_more_bits(layer_of(name), layers)) {
    format = Format::kQ6K;
  }
  const Format fits = fitting(format, shape.back());
  return Choice{fits, fits != format, format};
}

}  // namespace ef
