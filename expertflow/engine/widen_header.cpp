// The sizes that a widened checkpoint states. The result is read back as a model would read it, and compared.
#include <array>
#include <limits>

#include "expertflow/base/errors.h"
#include "expertflow/engine/widen_plan.h"

namespace ef {
namespace {

using nlohmann::json;

/// Config or metadata as named sizes.
class SizeKeys {
 public:
  explicit SizeKeys(Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    if (is_gguf()) prefix_ = checkpoint.gguf.metadata.str("general.architecture") + ".";
  }
  bool is_gguf() const { return checkpoint_.kind == Checkpoint::Kind::kGguf; }

  bool contains(const std::string& key) const {
    if (is_gguf()) return checkpoint_.gguf.metadata.contains(prefix_ + key);
    const auto it = checkpoint_.config.find(key);
    return it != checkpoint_.config.end() && !it->is_null();
  }

  void set(const std::string& key, int64_t value) {
    if (!is_gguf()) {
      checkpoint_.config[key] = value;
      return;
    }
    GgufValue entry;
    entry.type = GgufValue::Type::kU32;
    entry.value = value;
    checkpoint_.gguf.metadata.values[prefix_ + key] = entry;
  }

  /// A number, or a number a layer.
  void multiply(const std::string& key, int factor) {
    if (is_gguf()) {
      multiply_gguf(checkpoint_.gguf.metadata.values.at(prefix_ + key), factor);
      return;
    }
    json& value = checkpoint_.config[key];
    EF_CHECK(value.is_number_integer(), ModelError, "{}: config.json: {}: expected an integer, found {}",
             checkpoint_.path.string(), key, value.dump());
    value = value.get<int64_t>() * factor;
  }

 private:
  void multiply_gguf(GgufValue& entry, int factor) {
    if (auto* i = std::get_if<int64_t>(&entry.value)) {
      *i *= factor;
    } else if (auto* u = std::get_if<uint64_t>(&entry.value)) {
      *u *= uint64_t(factor);
    } else if (auto* list = std::get_if<std::vector<int64_t>>(&entry.value)) {
      for (int64_t& v : *list) v *= factor;
    }
  }

  Checkpoint& checkpoint_;
  std::string prefix_;
};

/// Sizes that a reader would otherwise derive from the hidden size.
void make_head_sizes_explicit(SizeKeys& keys, const Config& config) {
  if (config.latent) return;  // states its own head sizes
  if (!keys.is_gguf()) {
    if (!keys.contains("head_dim")) keys.set("head_dim", config.head_dim);
    return;
  }
  for (const char* key : {"attention.key_length", "attention.value_length"}) {
    if (!keys.contains(key)) keys.set(key, config.head_dim);
  }
  if (!keys.contains("rope.dimension_count")) keys.set("rope.dimension_count", config.rope.rotary_dim);
}

/// Layers that the model skips are not carried over.
void forget_skipped_layers(SizeKeys& keys, const Config& config) {
  const char* key = keys.is_gguf() ? "nextn_predict_layers" : "num_nextn_predict_layers";
  if (!keys.contains(key)) return;
  keys.set(key, 0);
  if (keys.is_gguf()) keys.set("block_count", int64_t(config.layers.size()));
}

bool same_but_widths(const Config& a, const Config& b) {
  return a.vocab == b.vocab && a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.layers.size() == b.layers.size() && a.attention_scale == b.attention_scale &&
         a.rope.rotary_dim == b.rope.rotary_dim && a.dense_ffn == b.dense_ffn && a.router.experts == b.router.experts &&
         a.router.top_k == b.router.top_k && a.embedding_scale == b.embedding_scale && a.logit_scale == b.logit_scale;
}

}  // namespace

WidenedHeader widen_header(const Architecture& arch, const Checkpoint& source, const Config& config, int hidden_copies,
                           int expert_copies) {
  Checkpoint base = source;
  SizeKeys base_keys(base);
  make_head_sizes_explicit(base_keys, config);
  forget_skipped_layers(base_keys, config);
  base_keys.multiply(base_keys.is_gguf() ? "embedding_length" : "hidden_size", hidden_copies);

  // Which key holds an expert's width differs by family; the right one is the one that reads back right.
  const std::array<const char*, 2> width_keys = base_keys.is_gguf()
                                                    ? std::array{"expert_feed_forward_length", "feed_forward_length"}
                                                    : std::array{"moe_intermediate_size", "intermediate_size"};
  for (const char* key : width_keys) {
    WidenedHeader result;
    result.checkpoint = base;
    SizeKeys keys(result.checkpoint);
    if (!keys.contains(key)) continue;
    keys.multiply(key, expert_copies);
    result.config = read_config(arch, result.checkpoint);
    const Config& wide = result.config;
    const bool shared_follows = wide.shared_ffn != config.shared_ffn;
    if (int64_t{wide.expert_ffn} != int64_t{config.expert_ffn} * expert_copies) continue;
    if (int64_t{wide.hidden} != int64_t{config.hidden} * hidden_copies || !same_but_widths(wide, config)) continue;
    if (shared_follows && int64_t{wide.shared_ffn} != int64_t{config.shared_ffn} * expert_copies) continue;
    result.factors = {hidden_copies, expert_copies, shared_follows ? expert_copies : 1};
    return result;
  }
  fail<ModelError>(
      "{}: {}: expected sizes that can be widened, found that changing {} or {} does not widen the experts alone",
      source.path.string(), arch.name, width_keys[0], width_keys[1]);
}

}  // namespace ef
