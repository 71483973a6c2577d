#include "expertflow/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {

GgufKeys::GgufKeys(const GgufMetadata& metadata)
    : metadata_(metadata), prefix_(metadata.str("general.architecture") + ".") {}

int GgufKeys::integer(std::string_view suffix) const {
  std::string name = key(suffix);
  int64_t v;
  const GgufValue* value = metadata_.find(name);
  if (value && value->type == GgufValue::Type::kArray) {
    std::vector<int64_t> list = metadata_.integers(name);
    EF_CHECK(!list.empty(), ModelError, "{}: {}: expected an integer or a list of equal integers, found an empty list",
             file(), name);
    for (int64_t item : list)
      EF_CHECK(item == list.front(), ModelError,
               "{}: {}: values that differ by layer are not supported, found {} and {}", file(), name, list.front(),
               item);
    v = list.front();
  } else {
    v = metadata_.integer(name);
  }
  EF_CHECK(std::in_range<int>(v), ModelError, "{}: {}: expected an integer of 32 bits, found {}", file(), name, v);
  return int(v);
}

int GgufKeys::integer_or(std::string_view suffix, int otherwise) const {
  return has(suffix) ? integer(suffix) : otherwise;
}

namespace {

std::vector<double> read_factors(const TensorDirectory& directory, const char* name, int pairs) {
  const TensorInfo* tensor = directory.find(name);
  if (!tensor) return {};
  EF_CHECK(tensor->rows() == 1 && tensor->cols() == pairs, ModelError,
           "{}: tensor {}: expected [{} (rotated pairs)], found {}", directory.file_name(*tensor), name, pairs,
           tensor->shape_text());
  EF_CHECK(tensor->format == Format::kF32 || tensor->format == Format::kF16 || tensor->format == Format::kBF16,
           ModelError, "{}: tensor {}: expected F32, F16 or BF16, found {}", directory.file_name(*tensor), name,
           format_info(tensor->format).name);
  std::vector<float> values = directory.read_f32(*tensor);
  return {values.begin(), values.end()};
}

RopeKind rope_kind(const GgufKeys& keys, const std::string& name) {
  if (name == "none") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "yarn") return RopeKind::kYarn;
  if (name == "longrope") return RopeKind::kLongrope;
  fail<ModelError>("{}: {}: unknown value \"{}\" (known: none, linear, yarn, longrope)", keys.file(),
                   keys.key("rope.scaling.type"), name);
}

// yarn: a factor on cos and sin beside yarn's own. DeepSeek's logarithmic multiplier is 0.1 * mscale_all_dim; such
// files were made from configs with mscale = mscale_all_dim, for which the factor on cos and sin is 1 and only the
// softmax scale changes.
void read_yarn(RopeConfig& out, const GgufKeys& keys, bool truncate) {
  out.truncate = truncate;
  out.beta_fast = keys.number_or("rope.scaling.yarn_beta_fast", 32);
  out.beta_slow = keys.number_or("rope.scaling.yarn_beta_slow", 1);
  double multiplier = keys.number_or("rope.scaling.yarn_log_multiplier", 0);
  out.mscale = out.mscale_all_dim = multiplier / 0.1;
  double attention = keys.number_or("rope.scaling.attn_factor", 1);
  if (attention != 1 && out.factor > 0 && multiplier == 0)
    out.attention_factor = attention * (out.factor <= 1 ? 1.0 : 0.1 * std::log(out.factor) + 1.0);
}

RopeConfig read_rope(const GgufKeys& keys, const TensorDirectory& directory, const GgufDefaults& defaults, int head_dim,
                     int context) {
  RopeConfig out;
  out.interleaved = defaults.rope_interleaved;
  out.theta = keys.number_or("rope.freq_base", 10000);
  out.rotary_dim = keys.integer_or("rope.dimension_count", head_dim);
  EF_CHECK(out.rotary_dim > 0 && out.rotary_dim <= head_dim && out.rotary_dim % 2 == 0, ModelError,
           "{}: {}: expected an even number from 2 to {} (head size), found {}", keys.file(),
           keys.key("rope.dimension_count"), head_dim, out.rotary_dim);
  int pairs = out.rotary_dim / 2;
  out.freq_divisors = read_factors(directory, "rope_freqs.weight", pairs);
  out.short_factor = read_factors(directory, "rope_factors_short.weight", pairs);
  out.long_factor = read_factors(directory, "rope_factors_long.weight", pairs);
  bool factors = !out.short_factor.empty() || !out.long_factor.empty();
  bool scaled = keys.has("rope.scaling.factor") || keys.has("rope.scale_linear");
  out.kind = rope_kind(keys, keys.text_or("rope.scaling.type", factors ? "longrope" : scaled ? "linear" : "none"));
  if (factors && out.kind == RopeKind::kDefault) out.kind = RopeKind::kLongrope;
  if (out.kind == RopeKind::kDefault) return out;
  if (out.kind == RopeKind::kLongrope) {
    EF_CHECK(!out.short_factor.empty() && !out.long_factor.empty(), ModelError,
             "{}: tensor {} is missing: longrope needs it", keys.file(),
             out.short_factor.empty() ? "rope_factors_short.weight" : "rope_factors_long.weight");
    if (keys.has("rope.scaling.attn_factor")) out.attention_factor = keys.number("rope.scaling.attn_factor");
  }
  out.original_max_positions = keys.integer_or("rope.scaling.original_context_length", context);
  bool legacy = out.kind == RopeKind::kLinear && !keys.has("rope.scaling.factor");
  if (out.kind != RopeKind::kLongrope)
    out.factor = keys.number(legacy ? "rope.scale_linear" : "rope.scaling.factor");
  else
    out.factor = out.original_max_positions > 0 ? double(context) / out.original_max_positions : 1;
  if (out.kind == RopeKind::kYarn) read_yarn(out, keys, defaults.yarn_truncate);
  return out;
}

void append_token(Config& out, const GgufKeys& keys, const char* key) {
  if (!keys.metadata().contains(key)) return;
  int64_t id = keys.metadata().integer(key);
  EF_CHECK(id >= 0 && std::in_range<TokenId>(id), ModelError, "{}: {}: expected a token id, found {}", keys.file(), key,
           id);
  if (std::find(out.eos.begin(), out.eos.end(), TokenId(id)) == out.eos.end()) out.eos.push_back(TokenId(id));
}

void read_tokens(Config& out, const GgufKeys& keys) {
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    append_token(out, keys, key);
  const char* bos = "tokenizer.ggml.bos_token_id";
  if (!keys.metadata().contains(bos)) return;
  int64_t id = keys.metadata().integer(bos);
  EF_CHECK(id >= 0 && std::in_range<TokenId>(id), ModelError, "{}: {}: expected a token id, found {}", keys.file(), bos,
           id);
  out.bos = TokenId(id);
}

void read_layers(Config& out, const GgufKeys& keys) {
  int blocks = keys.integer("block_count");
  EF_CHECK(blocks > 0 && blocks <= kMaxLayers, ModelError, "{}: {}: expected 1 to {}, found {}", keys.file(),
           keys.key("block_count"), kMaxLayers, blocks);
  // block_count includes the multi-token-prediction layers, which come last.
  out.skipped_layers = keys.integer_or("nextn_predict_layers", 0);
  EF_CHECK(out.skipped_layers >= 0 && out.skipped_layers < blocks, ModelError,
           "{}: {}: expected 0 to {} (block_count - 1), found {}", keys.file(), keys.key("nextn_predict_layers"),
           blocks - 1, out.skipped_layers);
  out.layers.resize(size_t(blocks - out.skipped_layers));
}

void read_experts(Config& out, const GgufKeys& keys) {
  out.router.experts = keys.integer("expert_count");
  out.router.top_k = keys.integer("expert_used_count");
  EF_CHECK(out.router.experts > 0, ModelError, "{}: {}: expected at least 1, found {}", keys.file(),
           keys.key("expert_count"), out.router.experts);
  EF_CHECK(out.router.top_k > 0 && out.router.top_k <= out.router.experts, ModelError,
           "{}: {}: expected 1 to {} ({}), found {}", keys.file(), keys.key("expert_used_count"), out.router.experts,
           keys.key("expert_count"), out.router.top_k);
}

}  // namespace

Config gguf_common(std::string_view arch, const GgufKeys& keys, const TensorDirectory& directory,
                   const GgufDefaults& defaults, std::optional<int> head_dim) {
  Config out;
  out.arch = arch;
  const TensorInfo* embed = directory.find("token_embd.weight");
  EF_CHECK(embed, ModelError, "{}: tensor token_embd.weight is missing", keys.file());
  EF_CHECK(std::in_range<int>(embed->rows()), ModelError,
           "{}: tensor token_embd.weight: expected a vocabulary of 32 bits, found {}", keys.file(),
           embed->shape_text());
  out.vocab = int(embed->rows());
  out.hidden = keys.integer("embedding_length");
  out.heads = keys.integer("attention.head_count");
  EF_CHECK(out.heads > 0, ModelError, "{}: {}: expected at least 1, found {}", keys.file(),
           keys.key("attention.head_count"), out.heads);
  out.kv_heads = keys.integer_or("attention.head_count_kv", out.heads);
  out.head_dim = head_dim ? *head_dim : keys.integer_or("attention.key_length", out.hidden / out.heads);
  int value_length = head_dim ? out.head_dim : keys.integer_or("attention.value_length", out.head_dim);
  EF_CHECK(value_length == out.head_dim, ModelError, "{}: {}: expected {} (attention.key_length), found {}",
           keys.file(), keys.key("attention.value_length"), out.head_dim, value_length);
  read_layers(out, keys);
  read_experts(out, keys);
  out.norm_eps = float(keys.number(defaults.norm_eps_key));
  out.context_length = keys.integer("context_length");
  out.rope = read_rope(keys, directory, defaults, out.head_dim, out.context_length);
  out.attention_scale = float(1.0 / std::sqrt(double(std::max(1, out.head_dim))));
  out.tied_embeddings = !directory.find("output.weight");
  read_tokens(out, keys);
  gguf_optional_tensors(out, directory);
  return out;
}

RouterScore gguf_router_score(const GgufKeys& keys, RouterScore family, std::vector<std::string>& notes) {
  if (!keys.has("expert_gating_func")) {
    notes.push_back(fmt::format("{}: {} is missing: {} routing taken, as is usual in this family", keys.file(),
                                keys.key("expert_gating_func"),
                                family == RouterScore::kSigmoid ? "sigmoid" : "softmax"));
    return family;
  }
  int function = keys.integer("expert_gating_func");
  if (function == 1) return RouterScore::kSoftmax;
  if (function == 2) return RouterScore::kSigmoid;
  if (function == 3) return RouterScore::kSoftmaxAfterTopK;
  fail<ModelError>("{}: {}: unknown value {} (known: 1 softmax, 2 sigmoid, 3 softmax after top-k)", keys.file(),
                   keys.key("expert_gating_func"), function);
}

void gguf_router_weights(Config& out, const GgufKeys& keys, bool renormalise) {
  out.router.renormalise = keys.boolean_or("expert_weights_norm", renormalise);
  out.router.scale = float(keys.number_or("expert_weights_scale", 1));
  if (out.router.scale == 0) out.router.scale = 1;  // old converters wrote 0 for "none"
}

void gguf_leading_dense(Config& out, const GgufKeys& keys) {
  int leading = keys.integer_or("leading_dense_block_count", 0);
  for (size_t l = 0; l < out.layers.size(); ++l) out.layers[l].sparse = int(l) >= leading;
}

void gguf_optional_tensors(Config& out, const TensorDirectory& directory) {
  out.fused_qkv = directory.find("blk.0.attn_qkv.weight");
  out.qkv_bias = directory.find("blk.0.attn_q.bias") || directory.find("blk.0.attn_qkv.bias");
  out.o_bias = directory.find("blk.0.attn_output.bias");
  out.head_bias = directory.find("output.bias");
  out.split_kv_b = directory.find("blk.0.attn_k_b.weight");
  for (size_t l = 0; l < out.layers.size() && !out.selection_bias; ++l)
    out.selection_bias = directory.find(fmt::format("blk.{}.exp_probs_b.bias", l)) ||
                         directory.find(fmt::format("blk.{}.exp_probs_b", l));
}

}  // namespace ef
