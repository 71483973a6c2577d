// GGUF to Hugging Face folder: the families' own names and layouts of experts.
#include <algorithm>
#include <map>

#include "expertflow/base/errors.h"
#include "expertflow/convert/families.h"
#include "expertflow/convert/plan.h"
#include "expertflow/convert/vocab.h"
#include "expertflow/model/binder.h"

namespace ef {
namespace {

using Shape = std::vector<int64_t>;

/// Row j * half + i of a head is its row 2i + j: the way back from neighbours.
std::vector<int64_t> half_order(int64_t rows, int64_t head_dim) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t in_head = r % head_dim, half = head_dim / 2;
    order[size_t(r)] = r - in_head + 2 * (in_head % half) + in_head / half;
  }
  return order;
}

bool is_plain(Format f) { return f == Format::kF32 || f == Format::kF16 || f == Format::kBF16; }

class HfPlanner {
 public:
  HfPlanner(const SourceModel& source, const ConversionFamily& family, std::optional<Format> to)
      : source_(source), family_(family), directory_(source.checkpoint.directory), to_(to) {}

  std::vector<OutTensor> run() {
    for (LayerId l = -1; l < LayerId(source_.config.layers.size()); ++l) {
      for (const BoundTensor& bound : source_.binding.tensors)
        if (bound.layer == l) add_bound(bound);
      for (const LayerExperts& experts : source_.binding.experts)
        if (experts.layer == l) add_experts(experts);
    }
    for (const auto& [layer, halves] : kv_halves_) add_kv_b(layer, halves);
    return std::move(tensors_);
  }
  bool wrote_mxfp4() const { return wrote_mxfp4_; }

 private:
  const Config& config() const { return source_.config; }

  void add(std::string name, Shape shape, Rows rows) {
    OutTensor out{std::move(name), std::move(shape), std::move(rows), Format::kF32};
    const Format from = out.rows->format();
    const bool selection = out.name.ends_with("e_score_correction_bias");  // float32 in the hub's files
    out.format = selection ? Format::kF32 : from == Format::kU8 ? from : to_.value_or(from);
    EF_CHECK(is_plain(out.format) || from == Format::kU8, ModelError,
             "{}: tensor {}: safetensors have no {}: choose the type to write with --type f32, bf16 or f16",
             source_.checkpoint.path.string(), out.name, format_info(from).name);
    tensors_.push_back(std::move(out));
  }

  std::string hf_name(Role role, LayerId layer) const {
    for (const TensorSpec& spec : source_.arch->tensors)
      if (spec.role == role && spec.hf) return tensor_name(spec.hf, layer, -1);
    fail<ModelError>("{}: {}: Hugging Face's form has no name for a tensor of layer {}",
                     source_.checkpoint.path.string(), family_.arch, layer);
  }

  /// A vector's numbers at hand.
  void add_vector(Role role, LayerId layer, const TensorInfo& t, int64_t first, int64_t count,
                  const std::vector<int64_t>& order) {
    const std::vector<float> values = directory_.read_f32(t);
    std::vector<float> out(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out[size_t(i)] = values[size_t(first + (order.empty() ? i : order[size_t(i)]))];
    add(hf_name(role, layer), {count}, constant_row(std::move(out)));
  }

  void add_bound(const BoundTensor& bound) {
    const TensorInfo& t = bound.tensor;
    const LayerId l = bound.layer;
    const int64_t q = dim_value(config(), Dim::kQ), kv = dim_value(config(), Dim::kKv);
    const bool reorder = family_.permuted_qk;
    switch (bound.spec->role) {
      case Role::kRopeFreqs:
        return;  // in the config
      case Role::kKB:
        kv_halves_[l].first = tensor_rows(directory_, t);
        return;
      case Role::kVB:
        kv_halves_[l].second = tensor_rows(directory_, t);
        return;
      case Role::kQkv:
        add(hf_name(Role::kQ, l), {q, t.cols()}, tensor_rows(directory_, t, 0, 1, q));
        add(hf_name(Role::kK, l), {kv, t.cols()}, tensor_rows(directory_, t, q, 1, kv));
        add(hf_name(Role::kV, l), {kv, t.cols()}, tensor_rows(directory_, t, q + kv, 1, kv));
        return;
      case Role::kQkvBias:
        add_vector(Role::kQBias, l, t, 0, q, {});
        add_vector(Role::kKBias, l, t, q, kv, {});
        add_vector(Role::kVBias, l, t, q + kv, kv, {});
        return;
      case Role::kQ:
      case Role::kK:
        if (!reorder) break;
        add(hf_name(bound.spec->role, l), t.shape,
            permuted(tensor_rows(directory_, t), half_order(t.rows(), config().head_dim)));
        return;
      case Role::kQBias:
      case Role::kKBias:
        if (!reorder) break;
        add_vector(bound.spec->role, l, t, 0, t.cols(), half_order(t.cols(), config().head_dim));
        return;
      default:
        break;
    }
    Shape shape = t.shape;  // GGUF drops or keeps an extent of one as it likes
    if (bound.spec->rows != Dim::kNone)
      shape = {dim_value(config(), bound.spec->rows), dim_value(config(), bound.spec->cols)};
    add(hf_name(bound.spec->role, l), std::move(shape), tensor_rows(directory_, t));
  }

  void add_kv_b(LayerId layer, const std::pair<Rows, Rows>& halves) {
    const LatentConfig& latent = *config().latent;
    std::vector<Rows> parts;
    for (int64_t h = 0; h < config().heads; ++h) {
      parts.push_back(transposed(slice(halves.first, h * latent.kv_lora, latent.kv_lora)));
      parts.push_back(slice(halves.second, h * latent.v_dim, latent.v_dim));
    }
    add(hf_name(Role::kKvB, layer), {dim_value(config(), Dim::kKvB), latent.kv_lora}, stacked(std::move(parts)));
  }

  // ---- experts ----

  Rows part(const LayerExperts& experts, size_t e, ExpertRole role) const {
    const ExpertPart* layout = experts.layout.find(role);
    if (!layout) return nullptr;
    for (const PartSource& source : experts.experts[e])
      if (source.role == role) return expert_rows(directory_, source, *layout);
    return nullptr;
  }

  template <class Make>
  Rows over_experts(const LayerExperts& experts, const Make& make) const {
    std::vector<Rows> all;
    for (size_t e = 0; e < experts.experts.size(); ++e) all.push_back(make(e));
    return stacked(std::move(all));
  }

  const ExpertSpec& layout_for(const LayerExperts& experts) const {
    const bool mxfp4 = experts.layout.find(ExpertRole::kGate)->format == Format::kMXFP4;
    for (const ExpertSpec& spec : source_.arch->hf_experts)
      if (spec.layout != ExpertFileLayout::kGateUpInterleavedMxfp4 || (mxfp4 && !to_)) return spec;
    return source_.arch->hf_experts.front();
  }

  void add_experts(const LayerExperts& experts) {
    const ExpertSpec& spec = layout_for(experts);
    switch (spec.layout) {
      case ExpertFileLayout::kSeparate:
        return add_separate(experts, spec);
      case ExpertFileLayout::kGateUpRows:
        return add_gate_up_rows(experts, spec);
      default:
        return add_interleaved(experts, spec);
    }
  }

  void add_separate(const LayerExperts& experts, const ExpertSpec& spec) {
    for (size_t e = 0; e < experts.experts.size(); ++e) {
      const auto one = [&](ExpertRole role, const char* pattern) {
        const Rows rows = part(experts, e, role);
        add(tensor_name(pattern, experts.layer, ExpertId(e)), {rows->rows(), rows->cols()}, rows);
      };
      one(ExpertRole::kGate, spec.gate);
      one(ExpertRole::kUp, spec.up);
      one(ExpertRole::kDown, spec.down);
    }
  }

  void add_gate_up_rows(const LayerExperts& experts, const ExpertSpec& spec) {
    const int64_t count = int64_t(experts.experts.size()), ffn = config().expert_ffn, hidden = config().hidden;
    add(tensor_name(spec.gate, experts.layer, -1), {count, 2 * ffn, hidden}, over_experts(experts, [&](size_t e) {
          return stacked({part(experts, e, ExpertRole::kGate), part(experts, e, ExpertRole::kUp)});
        }));
    add(tensor_name(spec.down, experts.layer, -1), {count, hidden, ffn},
        over_experts(experts, [&](size_t e) { return part(experts, e, ExpertRole::kDown); }));
  }

  /// gpt-oss: rows gate, up, gate, up; as MXFP4 pairs, or transposed.
  void add_interleaved(const LayerExperts& experts, const ExpertSpec& spec) {
    const int64_t count = int64_t(experts.experts.size()), ffn = config().expert_ffn, hidden = config().hidden;
    const auto gate_up = [&](size_t e) {
      return interleaved(part(experts, e, ExpertRole::kGate), part(experts, e, ExpertRole::kUp));
    };
    const auto down = [&](size_t e) { return part(experts, e, ExpertRole::kDown); };
    const std::string gate_name = tensor_name(spec.gate, experts.layer, -1);
    const std::string down_name = tensor_name(spec.down, experts.layer, -1);
    if (spec.layout == ExpertFileLayout::kGateUpInterleavedMxfp4) {
      wrote_mxfp4_ = true;
      add(gate_name + "_blocks", {count, 2 * ffn, hidden / 32, 16}, mxfp4_nibbles(over_experts(experts, gate_up)));
      add(gate_name + "_scales", {count, 2 * ffn, hidden / 32}, mxfp4_exponents(over_experts(experts, gate_up)));
      add(down_name + "_blocks", {count, hidden, ffn / 32, 16}, mxfp4_nibbles(over_experts(experts, down)));
      add(down_name + "_scales", {count, hidden, ffn / 32}, mxfp4_exponents(over_experts(experts, down)));
    } else {
      add(gate_name, {count, hidden, 2 * ffn}, over_experts(experts, [&](size_t e) { return transposed(gate_up(e)); }));
      add(down_name, {count, ffn, hidden}, over_experts(experts, [&](size_t e) { return transposed(down(e)); }));
    }
    if (!spec.gate_bias) return;
    const Rows gate_bias = over_experts(experts, [&](size_t e) {
      // Interleaving works on rows: a bias as one number a row.
      const Rows bias = interleaved(reshaped(part(experts, e, ExpertRole::kGateBias), ffn, 1),
                                    reshaped(part(experts, e, ExpertRole::kUpBias), ffn, 1));
      return reshaped(bias, 1, 2 * ffn);
    });
    add(tensor_name(spec.gate_bias, experts.layer, -1), {count, 2 * ffn}, gate_bias);
    add(tensor_name(spec.down_bias, experts.layer, -1), {count, hidden},
        over_experts(experts, [&](size_t e) { return part(experts, e, ExpertRole::kDownBias); }));
  }

  const SourceModel& source_;
  const ConversionFamily& family_;
  const TensorDirectory& directory_;
  const std::optional<Format> to_;
  std::map<LayerId, std::pair<Rows, Rows>> kv_halves_;  ///< k_b, v_b
  std::vector<OutTensor> tensors_;
  bool wrote_mxfp4_ = false;
};

Format most_common(const std::vector<OutTensor>& tensors) {
  std::map<Format, uint64_t> elements;
  for (const OutTensor& t : tensors)
    if (t.format != Format::kU8) elements[t.format] += uint64_t(t.rows->rows() * t.rows->cols());
  return std::max_element(elements.begin(), elements.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

/// The folder as a reader would see it, without bytes.
Checkpoint as_planned(const HfPlan& plan) {
  Checkpoint out;
  out.kind = Checkpoint::Kind::kHuggingFace;
  out.path = "the folder to be written";
  out.config = plan.config;
  out.generation_config = plan.generation_config;
  std::vector<TensorInfo> tensors;
  for (const OutTensor& t : plan.tensors) {
    TensorInfo info;
    info.name = t.name, info.format = t.format, info.shape = t.shape;
    tensors.push_back(std::move(info));
  }
  out.directory.add_file(std::make_shared<MemorySource>("model.safetensors", std::span<const std::byte>{}),
                         std::move(tensors));
  return out;
}

}  // namespace

HfPlan plan_hf(const SourceModel& source, std::optional<Format> to, const std::string& tokenizer_pre) {
  const std::string where = source.checkpoint.path.string();
  const ConversionFamily* family = find_family(source.arch->name);
  EF_CHECK(family, ModelError, "{}: {}: this architecture cannot be converted", where, source.arch->name);
  return naming_source(where, [&] {
    HfPlan plan;
    HfPlanner planner(source, *family, to);
    plan.tensors = planner.run();
    plan.config = write_hf_config(*family, source.config, most_common(plan.tensors));
    if (planner.wrote_mxfp4())
      plan.config["quantization_config"] = {
          {"quant_method", "mxfp4"},
          {"modules_to_not_convert",
           {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}};
    for (const char* key : {"bos_token_id", "eos_token_id"})
      if (plan.config.contains(key)) plan.generation_config[key] = plan.config[key];
    write_hf_vocabulary(source, tokenizer_pre, plan.files, plan.notes);

    const Checkpoint planned = as_planned(plan);
    const Config config = read_config(find_architecture(planned), planned);
    require_same_model(source.config, config, "config.json");
    bind(*source.arch, config, planned);
    if (!source.binding.skipped.empty())
      plan.notes.push_back(fmt::format("{} tensors that the model does not use are left out, such as {}",
                                       source.binding.skipped.size(), source.binding.skipped.front()));
    return plan;
  });
}

}  // namespace ef
