#include "expertflow/model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "expertflow/base/errors.h"
#include "expertflow/model/rope.h"

namespace ef {

using nlohmann::json;

namespace {

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

std::optional<int64_t> integral(const json& value) {
  if (value.is_number_unsigned()) {
    auto v = value.get<uint64_t>();
    if (v > uint64_t(std::numeric_limits<int64_t>::max())) return {};
    return int64_t(v);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  // Python writes 4096.0 where a computation gave it.
  if (value.is_number_float()) {
    double v = value.get<double>();
    if (std::abs(v) < 1e15 && v == std::floor(v)) return int64_t(v);
  }
  return {};
}

}  // namespace

HfJson::HfJson(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  EF_CHECK(object.is_object(), ModelError, "{}: expected a JSON object, found {}", where_, shown(object));
}

const json* HfJson::find(std::string_view keys) const {
  while (!keys.empty()) {
    size_t bar = keys.find('|');
    auto it = object_.find(std::string(keys.substr(0, bar)));
    if (it != object_.end() && !it->is_null()) return &*it;
    if (bar == std::string_view::npos) break;
    keys.remove_prefix(bar + 1);
  }
  return nullptr;
}

const json& HfJson::required(std::string_view keys) const {
  const json* value = find(keys);
  if (!value) {
    std::string names(keys);
    for (size_t at; (at = names.find('|')) != std::string::npos;) names.replace(at, 1, " or ");
    fail<ModelError>("{}: key {} is missing", where_, names);
  }
  return *value;
}

int HfJson::integer(std::string_view keys) const {
  const json& value = required(keys);
  auto v = integral(value);
  EF_CHECK(v, ModelError, "{}: {}: expected an integer, found {}", where_, keys, shown(value));
  EF_CHECK(std::in_range<int>(*v), ModelError, "{}: {}: expected an integer of 32 bits, found {}", where_, keys, *v);
  return int(*v);
}

int HfJson::integer_or(std::string_view keys, int otherwise) const { return has(keys) ? integer(keys) : otherwise; }

double HfJson::number(std::string_view keys) const {
  const json& value = required(keys);
  EF_CHECK(value.is_number(), ModelError, "{}: {}: expected a number, found {}", where_, keys, shown(value));
  return value.get<double>();
}

double HfJson::number_or(std::string_view keys, double otherwise) const { return has(keys) ? number(keys) : otherwise; }

std::optional<double> HfJson::number_if(std::string_view keys) const {
  return has(keys) ? std::optional<double>(number(keys)) : std::nullopt;
}

bool HfJson::boolean_or(std::string_view keys, bool otherwise) const {
  const json* value = find(keys);
  if (!value) return otherwise;
  EF_CHECK(value->is_boolean(), ModelError, "{}: {}: expected true or false, found {}", where_, keys, shown(*value));
  return value->get<bool>();
}

std::string HfJson::text_or(std::string_view keys, std::string_view otherwise) const {
  const json* value = find(keys);
  if (!value) return std::string(otherwise);
  EF_CHECK(value->is_string(), ModelError, "{}: {}: expected a string, found {}", where_, keys, shown(*value));
  return value->get<std::string>();
}

std::vector<double> HfJson::numbers(std::string_view key) const {
  const json& value = required(key);
  EF_CHECK(value.is_array(), ModelError, "{}: {}: expected a list of numbers, found {}", where_, key, shown(value));
  std::vector<double> out;
  for (const json& item : value) {
    EF_CHECK(item.is_number(), ModelError, "{}: {}: expected a list of numbers, found {} in it", where_, key,
             shown(item));
    out.push_back(item.get<double>());
  }
  return out;
}

std::vector<int> HfJson::integers(std::string_view key) const {
  const json& value = required(key);
  EF_CHECK(value.is_array(), ModelError, "{}: {}: expected a list of integers, found {}", where_, key, shown(value));
  std::vector<int> out;
  for (const json& item : value) {
    auto v = integral(item);
    EF_CHECK(v && std::in_range<int>(*v), ModelError, "{}: {}: expected a list of integers, found {} in it", where_,
             key, shown(item));
    out.push_back(int(*v));
  }
  return out;
}

std::vector<std::string> HfJson::texts(std::string_view key) const {
  const json& value = required(key);
  EF_CHECK(value.is_array(), ModelError, "{}: {}: expected a list of strings, found {}", where_, key, shown(value));
  std::vector<std::string> out;
  for (const json& item : value) {
    EF_CHECK(item.is_string(), ModelError, "{}: {}: expected a list of strings, found {} in it", where_, key,
             shown(item));
    out.push_back(item.get<std::string>());
  }
  return out;
}

namespace {

ActivationKind activation_kind(const HfJson& config) {
  std::string name = config.text_or("hidden_act|hidden_activation", "silu");
  if (name == "silu" || name == "swish") return ActivationKind::kSilu;
  if (name == "gelu") return ActivationKind::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return ActivationKind::kGeluTanh;
  fail<ModelError>("{}: hidden_act: unknown value \"{}\" (known: silu, swish, gelu, gelu_new, gelu_pytorch_tanh)",
                   config.where(), name);
}

void append_tokens(std::vector<TokenId>& out, const HfJson& config, std::string_view key) {
  const json* value = config.find(key);
  if (!value) return;
  std::vector<int> ids = value->is_array() ? config.integers(key) : std::vector<int>{config.integer(key)};
  for (int id : ids) {
    EF_CHECK(id >= 0, ModelError, "{}: {}: expected token ids from 0 on, found {}", config.where(), key, id);
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  }
}

// Weight formats are read from the tensors themselves; here only kinds that need other code are refused, by name.
void check_quantization(const HfJson& config) {
  const json* object = config.find("quantization_config");
  if (!object) return;
  HfJson quant(*object, config.where() + ": quantization_config");
  std::string method = quant.text_or("quant_method", "");
  EF_CHECK(method == "fp8" || method == "mxfp4", ModelError,
           "{}: quant_method: \"{}\" is not supported (known: none, fp8 with weight_block_size [128, 128], mxfp4)",
           quant.where(), method);
  if (method != "fp8") return;
  std::string format = quant.text_or("fmt", "e4m3");
  EF_CHECK(format == "e4m3", ModelError, "{}: fmt: expected \"e4m3\", found \"{}\"", quant.where(), format);
  EF_CHECK(
      quant.has("weight_block_size"), ModelError,
      "{}: weight_block_size is missing: fp8 with one scale a tensor or a channel is not supported (known: [128, 128])",
      quant.where());
  std::vector<int> block = quant.integers("weight_block_size");
  EF_CHECK(block == std::vector<int>({128, 128}), ModelError, "{}: weight_block_size: expected [128, 128], found {}",
           quant.where(), shown(*quant.find("weight_block_size")));
  std::string scheme = quant.text_or("activation_scheme", "dynamic");
  EF_CHECK(scheme == "dynamic", ModelError, "{}: activation_scheme: expected \"dynamic\", found \"{}\"", quant.where(),
           scheme);
}

RopeKind rope_kind(const HfJson& rope) {
  std::string name = rope.text_or("rope_type|type", "default");
  if (name == "default") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "dynamic") return RopeKind::kDynamic;
  if (name == "yarn") return RopeKind::kYarn;
  if (name == "longrope" || name == "su") return RopeKind::kLongrope;
  if (name == "llama3") return RopeKind::kLlama3;
  fail<ModelError>("{}: rope_type: unknown value \"{}\" (known: default, linear, dynamic, yarn, longrope, llama3)",
                   rope.where(), name);
}

void note_unknown_rope_keys(const HfJson& rope, std::vector<std::string>& notes) {
  static constexpr std::string_view kKnown[] = {"rope_type",
                                                "type",
                                                "rope_theta",
                                                "factor",
                                                "original_max_position_embeddings",
                                                "attention_factor",
                                                "beta_fast",
                                                "beta_slow",
                                                "mscale",
                                                "truncate",
                                                "mscale_all_dim",
                                                "short_factor",
                                                "low_freq_factor",
                                                "long_factor",
                                                "high_freq_factor",
                                                "short_mscale",
                                                "long_mscale",
                                                "partial_rotary_factor"};
  for (const auto& [key, value] : rope.object().items())
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
      notes.push_back(fmt::format("{}: key {} is not known and was ignored", rope.where(), key));
}

void read_longrope(RopeConfig& out, const HfJson& rope, int context) {
  for (const char* key : {"short_factor", "long_factor"})
    EF_CHECK(rope.has(key), ModelError, "{}: {} is missing: longrope needs one factor for each of {} rotated pairs",
             rope.where(), key, out.rotary_dim / 2);
  out.short_factor = rope.numbers("short_factor");
  out.long_factor = rope.numbers("long_factor");
  out.short_mscale = rope.number_if("short_mscale");
  out.long_mscale = rope.number_if("long_mscale");
  if (!rope.has("factor"))
    out.factor = out.original_max_positions > 0 ? double(context) / out.original_max_positions : 1.0;
}

RopeConfig read_rope(const HfJson& config, const HfDefaults& defaults, int head_dim, int context,
                     std::vector<std::string>& notes) {
  static const json kNone = json::object();
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json* object = config.find(key);
  HfJson rope(object ? *object : kNone, config.where() + ": " + key);
  note_unknown_rope_keys(rope, notes);
  RopeConfig out;
  out.kind = rope_kind(rope);
  out.interleaved = defaults.rope_interleaved;
  out.theta = rope.has("rope_theta") ? rope.number("rope_theta") : config.number_or("rope_theta", defaults.rope_theta);
  double partial = rope.has("partial_rotary_factor")
                       ? rope.number("partial_rotary_factor")
                       : config.number_or("partial_rotary_factor", defaults.partial_rotary);
  EF_CHECK(partial > 0 && partial <= 1, ModelError, "{}: partial_rotary_factor: expected a number in (0, 1], found {}",
           config.where(), partial);
  out.rotary_dim = int(head_dim * partial);
  if (out.kind == RopeKind::kDefault) return out;

  out.factor = out.kind == RopeKind::kLongrope ? rope.number_or("factor", 1.0) : rope.number("factor");
  if (rope.has("original_max_position_embeddings")) {
    out.original_max_positions = rope.integer("original_max_position_embeddings");
  } else {
    out.original_max_positions = config.integer_or("original_max_position_embeddings", context);
    if (out.kind != RopeKind::kLinear && out.kind != RopeKind::kDynamic &&
        !config.has("original_max_position_embeddings"))
      notes.push_back(
          fmt::format("{}: original_max_position_embeddings is missing, max_position_embeddings {} is taken",
                      rope.where(), context));
  }
  out.attention_factor = rope.number_if("attention_factor");
  out.beta_fast = rope.number_or("beta_fast", 32);
  out.beta_slow = rope.number_or("beta_slow", 1);
  out.truncate = rope.boolean_or("truncate", true);
  out.mscale = rope.number_or("mscale", 0);
  out.mscale_all_dim = rope.number_or("mscale_all_dim", 0);
  if (out.kind == RopeKind::kLlama3) {
    out.low_freq_factor = rope.number("low_freq_factor");
    out.high_freq_factor = rope.number("high_freq_factor");
  }
  if (out.kind == RopeKind::kLongrope) read_longrope(out, rope, context);
  return out;
}

bool layer_types_from_list(Config& out, const HfJson& config) {
  if (!config.has("mlp_layer_types")) return false;
  std::vector<std::string> types = config.texts("mlp_layer_types");
  EF_CHECK(types.size() == out.layers.size(), ModelError,
           "{}: mlp_layer_types: expected {} entries (num_hidden_layers), found {}", config.where(), out.layers.size(),
           types.size());
  for (size_t l = 0; l < types.size(); ++l) {
    EF_CHECK(types[l] == "sparse" || types[l] == "dense", ModelError,
             "{}: mlp_layer_types: unknown value \"{}\" (known: sparse, dense)", config.where(), types[l]);
    out.layers[l].sparse = types[l] == "sparse";
  }
  return true;
}

}  // namespace

Config hf_common(std::string_view arch, const HfJson& config, const json& generation_config, const HfDefaults& defaults,
                 std::optional<int> head_dim) {
  check_quantization(config);
  Config out;
  out.arch = arch;
  out.vocab = config.integer("vocab_size");
  out.hidden = config.integer("hidden_size");
  out.heads = config.integer("num_attention_heads");
  out.kv_heads = config.integer_or("num_key_value_heads", out.heads);
  EF_CHECK(out.heads > 0, ModelError, "{}: num_attention_heads: expected at least 1, found {}", config.where(),
           out.heads);
  out.head_dim = head_dim ? *head_dim : config.integer_or("head_dim", out.hidden / out.heads);
  int layers = config.integer("num_hidden_layers");
  EF_CHECK(layers > 0 && layers <= kMaxLayers, ModelError, "{}: num_hidden_layers: expected 1 to {}, found {}",
           config.where(), kMaxLayers, layers);
  out.layers.resize(size_t(layers));
  out.skipped_layers = config.integer_or("num_nextn_predict_layers", 0);
  out.norm_eps = float(config.number_or("rms_norm_eps", defaults.norm_eps));
  out.context_length = config.integer("max_position_embeddings");
  out.rope = read_rope(config, defaults, out.head_dim, out.context_length, out.notes);
  out.attention_scale = float(1.0 / std::sqrt(double(std::max(1, out.head_dim))));
  out.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  out.router.experts = config.integer("num_experts|num_local_experts|n_routed_experts");
  out.router.top_k = config.integer("num_experts_per_tok|experts_per_token");
  out.activation.kind = activation_kind(config);
  append_tokens(out.eos, config, "eos_token_id");
  if (config.has("bos_token_id")) out.bos = config.integer("bos_token_id");
  if (!generation_config.is_null()) {
    HfJson generation(generation_config, "generation_config.json");
    append_tokens(out.eos, generation, "eos_token_id");
    if (!out.bos && generation.has("bos_token_id")) out.bos = generation.integer("bos_token_id");
  }
  return out;
}

void hf_windows(Config& out, const HfJson& config, int window, int first_layer) {
  EF_CHECK(window >= 0, ModelError, "{}: sliding_window: expected 0, null or a positive number, found {}",
           config.where(), window);
  std::vector<std::string> types;
  if (config.has("layer_types")) {
    types = config.texts("layer_types");
    EF_CHECK(types.size() == out.layers.size(), ModelError,
             "{}: layer_types: expected {} entries (num_hidden_layers), found {}", config.where(), out.layers.size(),
             types.size());
  }
  for (size_t l = 0; l < out.layers.size(); ++l) {
    bool windowed = int(l) >= first_layer;
    if (!types.empty()) {
      windowed = types[l] == "sliding_attention";
      EF_CHECK(windowed || types[l] == "full_attention", ModelError,
               "{}: layer_types: unknown value \"{}\" (known: full_attention, sliding_attention)", config.where(),
               types[l]);
    }
    out.layers[l].window = windowed ? window : 0;
  }
}

void hf_sparse_step(Config& out, const HfJson& config) {
  if (layer_types_from_list(out, config)) return;
  int step = config.integer_or("decoder_sparse_step", 1);
  EF_CHECK(step > 0, ModelError, "{}: decoder_sparse_step: expected at least 1, found {}", config.where(), step);
  std::vector<int> dense = config.has("mlp_only_layers") ? config.integers("mlp_only_layers") : std::vector<int>{};
  for (size_t l = 0; l < out.layers.size(); ++l)
    out.layers[l].sparse = (int64_t(l) + 1) % step == 0 && std::find(dense.begin(), dense.end(), int(l)) == dense.end();
}

void hf_leading_dense(Config& out, const HfJson& config, int default_leading) {
  if (layer_types_from_list(out, config)) return;
  int leading = config.integer_or("first_k_dense_replace", default_leading);
  int frequency = config.integer_or("moe_layer_freq", 1);
  EF_CHECK(frequency > 0, ModelError, "{}: moe_layer_freq: expected at least 1, found {}", config.where(), frequency);
  for (size_t l = 0; l < out.layers.size(); ++l) out.layers[l].sparse = int(l) >= leading && int(l) % frequency == 0;
}

void hf_deepseek_router(Config& out, const HfJson& config, const HfRouterDefaults& defaults) {
  RouterConfig& router = out.router;
  std::string scoring = config.text_or("scoring_func", defaults.scoring);
  if (scoring == "softmax")
    router.score = RouterScore::kSoftmax;
  else if (scoring == "sigmoid")
    router.score = RouterScore::kSigmoid;
  else
    fail<ModelError>("{}: scoring_func: unknown value \"{}\" (known: softmax, sigmoid)", config.where(), scoring);
  std::string method = config.text_or("topk_method", defaults.method);
  EF_CHECK(method == "greedy" || method == "group_limited_greedy" || method == "noaux_tc", ModelError,
           "{}: topk_method: unknown value \"{}\" (known: greedy, group_limited_greedy, noaux_tc)", config.where(),
           method);
  if (!config.has("scoring_func") || !config.has("topk_method"))
    out.notes.push_back(fmt::format("{}: router of the family taken: scoring_func {}, topk_method {}", config.where(),
                                    scoring, method));
  if (method != "greedy") {
    router.groups = config.integer_or("n_group", defaults.groups);
    router.top_groups = config.integer_or("topk_group", defaults.top_groups);
  }
  out.selection_bias = method == "noaux_tc";
  router.group_score = method == "noaux_tc" ? GroupScore::kSumOfTop2 : GroupScore::kMax;
  router.renormalise = config.boolean_or("norm_topk_prob", defaults.renormalise);
  router.renormalise_eps = 1e-20f;
  router.scale = float(config.number_or("routed_scaling_factor", defaults.scale));
}

}  // namespace ef
