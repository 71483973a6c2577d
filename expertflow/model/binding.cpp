#include "expertflow/model/binding.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "expertflow/base/errors.h"
#include "expertflow/model/binder.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/load.h"

namespace ef {

namespace {

constexpr size_t kListed = 24;       // names shown in a message
constexpr size_t kGiveUp = 1 << 14;  // missing names after which a hostile config is not followed further

void replace(std::string& text, std::string_view what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
}

std::string fill_in(std::string_view pattern, LayerId layer, ExpertId expert) {
  std::string name(pattern);
  replace(name, "{l}", std::to_string(layer));
  replace(name, "{e}", expert < 0 ? "*" : std::to_string(expert));
  return name;
}

std::string listed(const std::vector<std::string>& names, size_t count) {
  std::vector<std::string> shown(names.begin(), names.begin() + std::ptrdiff_t(std::min(kListed, names.size())));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (count > shown.size()) text += fmt::format(" and {} more", count - shown.size());
  return text;
}

bool is_plain(Format f) { return f == Format::kF32 || f == Format::kF16 || f == Format::kBF16; }

int64_t blocks_of_128(int64_t n) { return (n + 127) / 128; }

}  // namespace

std::string tensor_name(std::string_view pattern, LayerId layer, ExpertId expert) {
  return fill_in(pattern.substr(0, pattern.find('|')), layer, expert);
}

Binder::Binder(const Architecture& arch, const Config& config, const Checkpoint& checkpoint)
    : arch_(arch),
      config_(config),
      checkpoint_(checkpoint),
      directory_(checkpoint.directory),
      used_(directory_.tensors().size(), 0) {}

const TensorInfo* Binder::find(std::string_view pattern, LayerId layer, ExpertId expert) const {
  while (!pattern.empty()) {
    size_t bar = pattern.find('|');
    if (const TensorInfo* tensor = directory_.find(fill_in(pattern.substr(0, bar), layer, expert))) return tensor;
    if (bar == std::string_view::npos) break;
    pattern.remove_prefix(bar + 1);
  }
  return nullptr;
}

void Binder::note_missing(std::string name) {
  ++missing_count_;
  if (missing_.size() < kListed) missing_.push_back(std::move(name));
  if (missing_count_ > kGiveUp) fail_if_missing();
}

void Binder::check_shape(const TensorInfo& tensor, const std::vector<Extent>& expected) const {
  auto same = [](int64_t found, const Extent& e) { return found == e.value; };
  if (std::equal(tensor.shape.begin(), tensor.shape.end(), expected.begin(), expected.end(), same)) return;
  std::vector<std::string> text;
  for (const Extent& e : expected)
    text.push_back(e.meaning.empty() ? fmt::format("{}", e.value) : fmt::format("{} ({})", e.value, e.meaning));
  fail<ModelError>("{}: tensor {}: expected shape [{}], found {}", directory_.file_name(tensor), tensor.name,
                   fmt::join(text, ", "), tensor.shape_text());
}

void Binder::check_matrix_format(const TensorInfo& t) const {
  const FormatInfo& info = format_info(t.format);
  EF_CHECK(has_arithmetic(t.format), ModelError, "{}: tensor {}: expected a weight format, found {}",
           directory_.file_name(t), t.name, info.name);
  EF_CHECK(t.cols() % info.block_elements == 0, ModelError,
           "{}: tensor {}: expected rows of whole {} blocks ({} elements), found {}", directory_.file_name(t), t.name,
           info.name, info.block_elements, t.shape_text());
}

// The 128 x 128 block scales that belong to an FP8 matrix [rows, cols], or to a stack of them.
TensorInfo Binder::block_scales(const TensorInfo& matrix, std::vector<Extent> leading, int64_t rows, int64_t cols) {
  std::string name = matrix.name + "_scale_inv";
  const TensorInfo* scales = directory_.find(name);
  if (!scales) {
    note_missing(name);
    return {};
  }
  use(*scales);
  leading.push_back({blocks_of_128(rows), "rows / 128, rounded up"});
  leading.push_back({blocks_of_128(cols), "columns / 128, rounded up"});
  check_shape(*scales, leading);
  EF_CHECK(is_plain(scales->format) || scales->format == Format::kU8, ModelError,
           "{}: tensor {}: expected F32, F16, BF16 or U8 (E8M0), found {}", directory_.file_name(*scales), name,
           format_info(scales->format).name);
  return *scales;
}

void Binder::bind_tensor(const TensorSpec& spec, LayerId layer) {
  const char* pattern = gguf() ? spec.gguf : spec.hf;
  const TensorInfo* t = find(pattern, layer);
  if (spec.role == Role::kHead && config_.tied_embeddings) {
    if (t) {
      use(*t);
      out_.skipped.push_back(t->name);
    }
    return;
  }
  if (!t) {
    if (spec.optional) return;
    std::string name = tensor_name(pattern, layer, -1);
    if (spec.role == Role::kHead) name += " (tie_word_embeddings is false)";
    note_missing(std::move(name));
    return;
  }
  use(*t);
  BoundTensor bound{&spec, layer, *t, {}};
  const int64_t rows = dim_value(config_, spec.rows), cols = dim_value(config_, spec.cols);
  if (spec.rows == Dim::kNone) {
    check_shape(*t, {{cols, dim_name(spec.cols)}});
    EF_CHECK(is_plain(t->format), ModelError, "{}: tensor {}: expected F32, F16 or BF16, found {}",
             directory_.file_name(*t), t->name, format_info(t->format).name);
  } else {
    // GGUF stacks heads (attn_k_b) and drops an extent of one; the product is what counts there.
    if (t->rows() != rows || t->cols() != cols)
      check_shape(*t, {{rows, dim_name(spec.rows)}, {cols, dim_name(spec.cols)}});
    check_matrix_format(*t);
    if (t->format == Format::kF8E4M3) bound.scales = block_scales(*t, {}, rows, cols);
  }
  out_.tensors.push_back(std::move(bound));
}

void Binder::bind_tensors() {
  for (const TensorSpec& spec : arch_.tensors) {
    if (!(gguf() ? spec.gguf : spec.hf)) continue;
    if (spec.applies && !spec.applies(config_)) continue;
    // An axis of 0 says that this model lacks the part (shared experts, q_lora).
    if (dim_value(config_, spec.rows) == 0 || dim_value(config_, spec.cols) == 0) continue;
    if (spec.in == TensorSpec::In::kModel) {
      bind_tensor(spec, -1);
      continue;
    }
    for (size_t l = 0; l < config_.layers.size(); ++l) {
      bool sparse = config_.layers[l].sparse;
      if (spec.in == TensorSpec::In::kSparseLayers && !sparse) continue;
      if (spec.in == TensorSpec::In::kDenseLayers && sparse) continue;
      bind_tensor(spec, LayerId(l));
    }
  }
}

// A MoE config over a file whose feed-forward tensors are dense is another mistake than an incomplete file: say so.
void Binder::fail_if_dense_only() const {
  auto of_experts = [](const std::string& name) {
    return name.find("_exps") != std::string::npos || name.find("experts.") != std::string::npos ||
           name.find("block_sparse_moe") != std::string::npos || name.find(".ffn_up.0.") != std::string::npos;
  };
  for (const TensorInfo& t : directory_.tensors())
    if (of_experts(t.name)) return;
  for (const TensorInfo& t : directory_.tensors()) {
    if (!t.name.ends_with(".ffn_up.weight") && !t.name.ends_with(".mlp.up_proj.weight")) continue;
    if (used_[size_t(&t - directory_.tensors().data())]) continue;
    const ExpertSpec& spec = gguf() ? arch_.gguf_experts.front() : arch_.hf_experts.front();
    fail<ModelError>(
        "{}: architecture {} with {} experts in {} layers, but the file holds dense feed-forward tensors only (such as "
        "{}): expected tensors like {}",
        where(), arch_.name, config_.router.experts, config_.sparse_layers(), t.name, tensor_name(spec.gate, 0, -1));
  }
}

void Binder::fail_if_missing() const {
  if (missing_count_ == 0) return;
  fail_if_dense_only();
  fail<ModelError>("{}: architecture {}: {} tensors are missing: {}", where(), arch_.name, missing_count_,
                   listed(missing_, missing_count_));
}

bool Binder::of_skipped_layer(std::string_view name) const {
  for (std::string_view prefix : {std::string_view("model.layers."), std::string_view("blk.")}) {
    if (!name.starts_with(prefix)) continue;
    size_t layer = 0;
    auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
    if (error != std::errc() || end == name.data() + name.size() || *end != '.') return false;
    return layer >= config_.layers.size() && layer < config_.layers.size() + size_t(config_.skipped_layers);
  }
  return false;
}

void Binder::sort_out_unused() {
  std::vector<std::string> unknown;
  bool scales = false;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    const std::string& name = directory_.tensors()[i].name;
    bool ignored = std::any_of(arch_.ignored.begin(), arch_.ignored.end(),
                               [&](std::string_view part) { return name.find(part) != std::string::npos; });
    if (ignored || of_skipped_layer(name)) {
      out_.skipped.push_back(name);
      continue;
    }
    scales |= name.find("scale") != std::string::npos || name.ends_with("zeros") || name.ends_with("g_idx");
    unknown.push_back(printable(name));
  }
  EF_CHECK(unknown.empty(), ModelError, "{}: architecture {} has no use for {} tensors: {}{}", where(), arch_.name,
           unknown.size(), listed(unknown, unknown.size()),
           scales ? " (scale tensors of a quantisation that is not supported?)" : "");
}

Binding Binder::run() {
  bind_tensors();
  for (size_t l = 0; l < config_.layers.size(); ++l)
    if (config_.layers[l].sparse) bind_experts(LayerId(l));
  fail_if_missing();
  sort_out_unused();
  for (const BoundTensor& bound : out_.tensors) out_.resident_bytes += loaded_bytes(config_, bound);
  return std::move(out_);
}

uint64_t loaded_bytes(const Config& config, const BoundTensor& bound) {
  const TensorInfo& t = bound.tensor;
  const uint64_t elements = uint64_t(t.elements());
  if (bound.spec->role == Role::kRopeFreqs) return 0;  // in Config already
  if (bound.spec->rows == Dim::kNone) return aligned(elements * sizeof(float));
  if (bound.spec->role == Role::kKvB) {
    const uint64_t each = is_plain(t.format) ? uint64_t(format_info(t.format).block_bytes) : sizeof(float);
    const uint64_t row = uint64_t(t.cols()) * each;
    return aligned(uint64_t(dim_value(config, Dim::kHeads) * config.latent->nope) * row) +
           aligned(uint64_t(dim_value(config, Dim::kVB)) * row);
  }
  return aligned(t.bytes) +
         (bound.scales.name.empty() ? 0 : aligned(uint64_t(bound.scales.elements()) * sizeof(float)));
}

Binding bind(const Architecture& arch, const Config& config, const Checkpoint& checkpoint) {
  return Binder(arch, config, checkpoint).run();
}

}  // namespace ef
