// Hugging Face folder to GGUF: llama.cpp's names, stacked experts, its order of q and k rows, its halves of kv_b.
#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/convert/families.h"
#include "expertflow/convert/plan.h"
#include "expertflow/convert/vocab.h"
#include "expertflow/model/binder.h"

namespace ef {
namespace {

using Shape = std::vector<int64_t>;

/// Row 2i + j of a head is its row j * half + i: rope pairs become neighbours.
std::vector<int64_t> neighbour_order(int64_t rows, int64_t head_dim) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t in_head = r % head_dim;
    order[size_t(r)] = r - in_head + (in_head % 2) * (head_dim / 2) + in_head / 2;
  }
  return order;
}

class GgufPlanner {
 public:
  GgufPlanner(const SourceModel& source, const ConversionFamily& family)
      : source_(source), family_(family), directory_(source.checkpoint.directory) {}

  std::vector<OutTensor> run() {
    add_bound(-1, [](Role role) { return role == Role::kEmbed; });
    for (size_t l = 0; l < source_.config.layers.size(); ++l) {
      add_bound(LayerId(l), [](Role) { return true; });
      for (const LayerExperts& experts : source_.binding.experts)
        if (experts.layer == LayerId(l)) add_experts(experts);
    }
    add_bound(-1, [](Role role) { return role != Role::kEmbed; });
    for (auto& [name, values] : rope_factor_tensors(family_, source_.config)) {
      const Shape shape = {int64_t(values.size())};
      add(name, shape, constant_row(std::move(values)));
    }
    return std::move(tensors_);
  }

 private:
  void add(std::string name, Shape shape, Rows rows, bool was_fp8 = false) {
    OutTensor out{std::move(name), std::move(shape), std::move(rows), Format::kF32};
    out.format = stays_f32_in_gguf(out.name, out.shape) ? Format::kF32 : was_fp8 ? Format::kBF16 : out.rows->format();
    tensors_.push_back(std::move(out));
  }

  template <class Wanted>
  void add_bound(LayerId layer, const Wanted& wanted) {
    for (const BoundTensor& bound : source_.binding.tensors)
      if (bound.layer == layer && wanted(bound.spec->role)) add_bound(bound);
  }

  Rows rows_of(const BoundTensor& bound) const {
    const TensorInfo& t = bound.tensor;
    if (!bound.scales.name.empty()) return fp8_rows(directory_, t, bound.scales, 1, 0, t.rows());
    return tensor_rows(directory_, t);
  }

  void add_bound(const BoundTensor& bound) {
    const Role role = bound.spec->role;
    const bool fp8 = !bound.scales.name.empty();
    if (role == Role::kKvB && family_.split_kv_b) return add_kv_b(bound);
    const char* pattern = role == Role::kFfnNorm ? family_.gguf_ffn_norm : bound.spec->gguf;
    EF_CHECK(pattern, ModelError, "{}: tensor {}: GGUF has no name for it", directory_.file_name(bound.tensor),
             bound.tensor.name);
    add(tensor_name(pattern, bound.layer, -1), bound.tensor.shape, reordered(bound, rows_of(bound)), fp8);
  }

  Rows reordered(const BoundTensor& bound, Rows rows) const {
    const Role role = bound.spec->role;
    if (!family_.permuted_qk) return rows;
    if (role == Role::kQ || role == Role::kK)
      return permuted(std::move(rows), neighbour_order(rows->rows(), source_.config.head_dim));
    if (role != Role::kQBias && role != Role::kKBias) return rows;
    const std::vector<float> values = directory_.read_f32(bound.tensor);
    std::vector<float> out;
    for (int64_t r : neighbour_order(int64_t(values.size()), source_.config.head_dim)) out.push_back(values[size_t(r)]);
    return constant_row(std::move(out));
  }

  void add_kv_b(const BoundTensor& bound) {
    const LatentConfig& latent = *source_.config.latent;
    const int64_t heads = source_.config.heads, head = int64_t{latent.nope} + latent.v_dim;
    std::vector<Rows> keys, values;
    for (int64_t h = 0; h < heads; ++h) {
      keys.push_back(transposed(slice(rows_of(bound), h * head, latent.nope)));
      values.push_back(slice(rows_of(bound), h * head + latent.nope, latent.v_dim));
    }
    const bool fp8 = !bound.scales.name.empty();
    add(tensor_name("blk.{l}.attn_k_b.weight", bound.layer, -1), {heads, latent.kv_lora, latent.nope},
        stacked(std::move(keys)), fp8);
    add(tensor_name("blk.{l}.attn_v_b.weight", bound.layer, -1), {heads, latent.v_dim, latent.kv_lora},
        stacked(std::move(values)), fp8);
  }

  void add_experts(const LayerExperts& experts) {
    struct Row {
      ExpertRole role;
      const char* name;
    };
    static constexpr Row kRows[] = {
        {ExpertRole::kGate, "blk.{l}.ffn_gate_exps.weight"}, {ExpertRole::kUp, "blk.{l}.ffn_up_exps.weight"},
        {ExpertRole::kDown, "blk.{l}.ffn_down_exps.weight"}, {ExpertRole::kGateBias, "blk.{l}.ffn_gate_exps.bias"},
        {ExpertRole::kUpBias, "blk.{l}.ffn_up_exps.bias"},   {ExpertRole::kDownBias, "blk.{l}.ffn_down_exps.bias"},
    };
    for (const Row& row : kRows) {
      const ExpertPart* part = experts.layout.find(row.role);
      if (!part) continue;
      std::vector<Rows> parts;
      for (const auto& sources : experts.experts) parts.push_back(part_rows(sources, *part));
      const int64_t count = int64_t(parts.size());
      Shape shape = {count, part->rows, part->cols};
      if (part->rows == 1 && row.role >= ExpertRole::kGateBias) shape = {count, part->cols};
      add(tensor_name(row.name, experts.layer, -1), std::move(shape), stacked(std::move(parts)),
          part->format == Format::kF8E4M3);
    }
  }

  Rows part_rows(const std::vector<PartSource>& sources, const ExpertPart& part) const {
    const PartSource& source = find(sources, part.role);
    if (part.format != Format::kF8E4M3) return expert_rows(directory_, source, part);
    const ExpertRole scales = ExpertRole(int(part.role) - int(ExpertRole::kGate) + int(ExpertRole::kGateScales));
    const int64_t matrices = source.stacked ? source.tensor.shape.front() : 1;
    return fp8_rows(directory_, source.tensor, find(sources, scales).tensor, matrices,
                    source.index * (source.tensor.rows() / matrices) + source.row_begin, part.rows);
  }

  static const PartSource& find(const std::vector<PartSource>& sources, ExpertRole role) {
    return *std::find_if(sources.begin(), sources.end(), [&](const PartSource& s) { return s.role == role; });
  }

  const SourceModel& source_;
  const ConversionFamily& family_;
  const TensorDirectory& directory_;
  std::vector<OutTensor> tensors_;
};

/// The checkpoint as a reader of the planned file would see it; only rope's factors have bytes.
Checkpoint as_planned(const GgufPlan& plan, const std::string& name, std::vector<std::byte>& bytes) {
  Checkpoint out;
  out.kind = Checkpoint::Kind::kGguf;
  out.path = name;
  out.gguf.metadata = plan.metadata;
  out.gguf.metadata.file = name;
  std::vector<TensorInfo> tensors;
  for (const OutTensor& t : plan.tensors) {
    TensorInfo info;
    info.name = t.name, info.format = t.format, info.shape = t.shape;
    info.bytes = uint64_t(t.rows->rows()) * row_bytes(t.format, t.rows->cols());
    info.offset = bytes.size();
    if (t.name.starts_with("rope_f")) {
      bytes.resize(bytes.size() + info.bytes);
      t.rows->read(0, t.rows->rows(), bytes.data() + info.offset);
    }
    tensors.push_back(std::move(info));
  }
  out.directory.add_file(std::make_shared<MemorySource>(name, bytes), std::move(tensors));
  return out;
}

void add_notes(const SourceModel& source, const ConversionFamily& family, GgufPlan& plan) {
  const auto note = [&](std::string text) { plan.notes.push_back(std::move(text)); };
  if (!source.binding.skipped.empty())
    note(fmt::format("{} tensors that the model does not use are left out, such as {}", source.binding.skipped.size(),
                     source.binding.skipped.front()));
  const std::string prefix = std::string(family.gguf_arch) + ".";
  if (plan.metadata.contains(prefix + "expert_weights_norm") &&
      (family.arch == "qwen2_moe" || family.arch == "qwen3_moe" || family.arch == "olmoe"))
    note(
        fmt::format("{}expert_weights_norm is written, but llama.cpp does not read it for this family: it will "
                    "compute other weights",
                    prefix));
  if (plan.metadata.contains(prefix + "attention.clamp_kqv"))
    note(prefix + "attention.clamp_kqv is written, but llama.cpp does not read it for this family");
  if (family.arch == "mixtral" && plan.metadata.contains(prefix + "attention.sliding_window"))
    note(prefix + "attention.sliding_window is written, but llama.cpp attends to all positions in this family");
  if (source.config.eos.size() > 3)
    note(fmt::format("GGUF names three tokens that end a text; {} of {} are left out", source.config.eos.size() - 3,
                     source.config.eos.size()));
}

}  // namespace

bool stays_f32_in_gguf(const std::string& name, const Shape& shape) {
  return shape.size() < 2 || !name.ends_with(".weight") || name.ends_with("_norm.weight") ||
         name.ends_with("ffn_gate_inp.weight") || name.ends_with("ffn_gate_inp_shexp.weight");
}

SourceModel open_source(const std::filesystem::path& path) {
  SourceModel source;
  source.checkpoint = open_checkpoint(path);
  EF_CHECK(!source.checkpoint.packed, ConfigError, "{}: expected a checkpoint, found a packed file: start from {}",
           path.string(), source.checkpoint.packed->source_name);
  source.arch = &find_architecture(source.checkpoint);
  source.config = read_config(*source.arch, source.checkpoint);
  source.binding = bind(*source.arch, source.config, source.checkpoint);
  return source;
}

GgufPlan plan_gguf(const SourceModel& source, const std::string& tokenizer_pre) {
  const std::string where = source.checkpoint.path.string();
  const ConversionFamily* family = find_family(source.arch->name);
  EF_CHECK(family, ModelError, "{}: {}: GGUF has no form of this architecture that llama.cpp knows", where,
           source.arch->name);
  return naming_source(where, [&] {
    GgufPlan plan;
    std::filesystem::path folder = std::filesystem::absolute(source.checkpoint.path).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    set_text(plan.metadata, "general.name", folder.filename().string());
    write_gguf_config(*family, source.config, plan.metadata);
    plan.tensors = GgufPlanner(source, *family).run();
    write_gguf_vocabulary(source, tokenizer_pre, plan.metadata, plan.notes);

    std::vector<std::byte> bytes;
    const Checkpoint planned = as_planned(plan, "the GGUF to be written", bytes);
    const Architecture& read_as = find_architecture(planned);
    EF_CHECK(read_as.name == source.arch->name, ModelError, "GGUF cannot carry {}: it would be read as {}",
             source.arch->name, read_as.name);
    const Config config = read_config(read_as, planned);
    require_same_model(source.config, config, "GGUF");
    bind(read_as, config, planned);
    add_notes(source, *family, plan);
    return plan;
  });
}

}  // namespace ef
