// Routed experts: one unit each, whatever the file's layout (per expert, stacked, gate and up fused, interleaved, MXFP4
// pairs).
#include <algorithm>
#include <numeric>

#include "expertflow/model/binder.h"
#include "expertflow/weights/load.h"

namespace ef {

/// Parts of one expert as they are collected.
struct Binder::ExpertPlan {
  LayerId layer;
  ExpertId expert;
  std::vector<ExpertPart> parts;
  std::vector<PartSource> sources;
};

namespace {

bool is_stacked(std::string_view pattern) { return pattern.find("{e}") == std::string_view::npos; }

// "name" + suffix for every alternative of a pattern.
std::string with_suffix(std::string_view pattern, std::string_view suffix) {
  std::string out;
  for (char c : pattern) {
    if (c == '|') out += suffix;
    out += c;
  }
  return out + std::string(suffix);
}

ExpertRole scales_of(ExpertRole role) {
  return ExpertRole(int(role) - int(ExpertRole::kGate) + int(ExpertRole::kGateScales));
}

int64_t blocks_of_128(int64_t n) { return (n + 127) / 128; }

}  // namespace

const ExpertSpec* Binder::choose_experts(LayerId layer) const {
  for (const ExpertSpec& spec : gguf() ? arch_.gguf_experts : arch_.hf_experts) {
    bool mxfp4 = spec.layout == ExpertFileLayout::kGateUpInterleavedMxfp4;
    if (find(mxfp4 ? with_suffix(spec.gate, "_blocks") : spec.gate, layer, 0)) return &spec;
  }
  return nullptr;
}

void Binder::note_missing_experts(const ExpertSpec& spec, LayerId layer) {
  for (const char* pattern : {spec.gate, spec.up, spec.down})
    if (pattern) note_missing(tensor_name(pattern, layer, -1));
}

const TensorInfo* Binder::require(const ExpertPlan& plan, std::string_view pattern) {
  const TensorInfo* t = find(pattern, plan.layer, plan.expert);
  if (t)
    use(*t);
  else if (!is_stacked(pattern) || plan.expert == 0)
    note_missing(tensor_name(pattern, plan.layer, plan.expert));
  return t;
}

void Binder::add_matrix(ExpertPlan& plan, ExpertRole role, const char* pattern, int64_t rows, int64_t cols,
                        int64_t file_rows, int64_t row_begin, int64_t row_step, Unpack unpack) {
  const TensorInfo* t = require(plan, pattern);
  if (!t) return;
  const bool stacked = is_stacked(pattern);
  std::vector<Extent> shape;
  if (stacked) shape.push_back({config_.router.experts, "experts"});
  const Extent file_rows_extent{file_rows, file_rows == config_.hidden ? "hidden" : "expert rows"},
      cols_extent{cols, ""};
  if (unpack == Unpack::kTransposed)
    shape.insert(shape.end(), {cols_extent, file_rows_extent});
  else
    shape.insert(shape.end(), {file_rows_extent, cols_extent});
  check_shape(*t, shape);
  check_matrix_format(*t);
  EF_CHECK(unpack != Unpack::kTransposed || format_info(t->format).block_elements == 1, ModelError,
           "{}: tensor {}: expected F32, F16 or BF16 in this layout, found {}", directory_.file_name(*t), t->name,
           format_info(t->format).name);
  plan.parts.push_back({role, t->format, rows, cols, 0, uint64_t(rows) * row_bytes(t->format, cols)});
  plan.sources.push_back({role, unpack, *t, {}, stacked ? plan.expert : 0, stacked, row_begin, row_step});
  if (t->format == Format::kF8E4M3)
    add_scales(plan, scales_of(role), *t, PartSource(plan.sources.back()), ExpertPart(plan.parts.back()), file_rows);
}

void Binder::add_scales(ExpertPlan& plan, ExpertRole role, const TensorInfo& matrix, const PartSource& of,
                        const ExpertPart& part, int64_t file_rows) {
  EF_CHECK(of.row_step == 1 && of.row_begin % 128 == 0 && of.unpack == Unpack::kRows, ModelError,
           "{}: tensor {}: FP8 blocks of 128 rows do not divide {} rows of gate and up", directory_.file_name(matrix),
           matrix.name, part.rows);
  std::vector<Extent> leading;
  if (of.stacked) leading.push_back({config_.router.experts, "experts"});
  TensorInfo scales = block_scales(matrix, leading, file_rows, part.cols);
  if (scales.name.empty()) return;
  const int64_t rows = blocks_of_128(part.rows), cols = blocks_of_128(part.cols);
  const int64_t row_begin = of.row_begin / 128;
  plan.parts.push_back({role, Format::kF32, rows, cols, 0, uint64_t(rows * cols) * sizeof(float)});
  // kToF32 counts elements.
  plan.sources.push_back({role, Unpack::kToF32, std::move(scales), {}, of.index, of.stacked, row_begin * cols, 1});
}

void Binder::add_mxfp4(ExpertPlan& plan, ExpertRole role, const char* pattern, int64_t rows, int64_t cols,
                       int64_t file_rows, int64_t row_begin, int64_t row_step) {
  const TensorInfo* blocks = require(plan, with_suffix(pattern, "_blocks"));
  const TensorInfo* scales = require(plan, with_suffix(pattern, "_scales"));
  if (!blocks || !scales) return;
  EF_CHECK(cols % 32 == 0, ModelError,
           "{}: tensor {}: expected rows of whole MXFP4 blocks (32 elements), found rows of {}",
           directory_.file_name(*blocks), blocks->name, cols);
  const Extent experts{config_.router.experts, "experts"}, file_rows_extent{file_rows, "expert rows"},
      groups{cols / 32, "columns / 32"};
  check_shape(*blocks, {experts, file_rows_extent, groups, {16, "bytes a block"}});
  check_shape(*scales, {experts, file_rows_extent, groups});
  for (const TensorInfo* t : {blocks, scales})
    EF_CHECK(t->format == Format::kU8, ModelError, "{}: tensor {}: expected U8, found {}", directory_.file_name(*t),
             t->name, format_info(t->format).name);
  plan.parts.push_back({role, Format::kMXFP4, rows, cols, 0, uint64_t(rows) * row_bytes(Format::kMXFP4, cols)});
  plan.sources.push_back({role, Unpack::kMxfp4Pairs, *blocks, *scales, plan.expert, true, row_begin, row_step});
}

void Binder::add_bias(ExpertPlan& plan, ExpertRole role, const char* pattern, int64_t n, int64_t file_n, int64_t begin,
                      int64_t step) {
  if (!pattern) return;
  const TensorInfo* t = require(plan, pattern);
  if (!t) return;
  const bool stacked = is_stacked(pattern);
  std::vector<Extent> shape;
  if (stacked) shape.push_back({config_.router.experts, "experts"});
  shape.push_back({file_n, file_n == config_.hidden ? "hidden" : "expert rows"});
  check_shape(*t, shape);
  EF_CHECK(t->format == Format::kF32 || t->format == Format::kF16 || t->format == Format::kBF16, ModelError,
           "{}: tensor {}: expected F32, F16 or BF16, found {}", directory_.file_name(*t), t->name,
           format_info(t->format).name);
  plan.parts.push_back({role, Format::kF32, 1, n, 0, uint64_t(n) * sizeof(float)});
  plan.sources.push_back({role, Unpack::kToF32, *t, {}, stacked ? plan.expert : 0, stacked, begin, step});
}

std::vector<PartSource> Binder::expert_sources(const ExpertSpec& spec, LayerId layer, ExpertId expert,
                                               std::vector<ExpertPart>& parts) {
  const int64_t ffn = config_.expert_ffn, hidden = config_.hidden;
  ExpertPlan plan{layer, expert, {}, {}};
  switch (spec.layout) {
    case ExpertFileLayout::kSeparate:
      add_matrix(plan, ExpertRole::kGate, spec.gate, ffn, hidden, ffn, 0, 1, Unpack::kRows);
      add_matrix(plan, ExpertRole::kUp, spec.up, ffn, hidden, ffn, 0, 1, Unpack::kRows);
      add_matrix(plan, ExpertRole::kDown, spec.down, hidden, ffn, hidden, 0, 1, Unpack::kRows);
      add_bias(plan, ExpertRole::kGateBias, spec.gate_bias, ffn, ffn, 0, 1);
      add_bias(plan, ExpertRole::kUpBias, spec.up_bias, ffn, ffn, 0, 1);
      break;
    case ExpertFileLayout::kGateUpRows:
      add_matrix(plan, ExpertRole::kGate, spec.gate, ffn, hidden, 2 * ffn, 0, 1, Unpack::kRows);
      add_matrix(plan, ExpertRole::kUp, spec.gate, ffn, hidden, 2 * ffn, ffn, 1, Unpack::kRows);
      add_matrix(plan, ExpertRole::kDown, spec.down, hidden, ffn, hidden, 0, 1, Unpack::kRows);
      add_bias(plan, ExpertRole::kGateBias, spec.gate_bias, ffn, 2 * ffn, 0, 1);
      add_bias(plan, ExpertRole::kUpBias, spec.gate_bias, ffn, 2 * ffn, ffn, 1);
      break;
    case ExpertFileLayout::kGateUpInterleavedTransposed:
      add_matrix(plan, ExpertRole::kGate, spec.gate, ffn, hidden, 2 * ffn, 0, 2, Unpack::kTransposed);
      add_matrix(plan, ExpertRole::kUp, spec.gate, ffn, hidden, 2 * ffn, 1, 2, Unpack::kTransposed);
      add_matrix(plan, ExpertRole::kDown, spec.down, hidden, ffn, hidden, 0, 1, Unpack::kTransposed);
      add_bias(plan, ExpertRole::kGateBias, spec.gate_bias, ffn, 2 * ffn, 0, 2);
      add_bias(plan, ExpertRole::kUpBias, spec.gate_bias, ffn, 2 * ffn, 1, 2);
      break;
    case ExpertFileLayout::kGateUpInterleavedMxfp4:
      add_mxfp4(plan, ExpertRole::kGate, spec.gate, ffn, hidden, 2 * ffn, 0, 2);
      add_mxfp4(plan, ExpertRole::kUp, spec.gate, ffn, hidden, 2 * ffn, 1, 2);
      add_mxfp4(plan, ExpertRole::kDown, spec.down, hidden, ffn, hidden, 0, 1);
      add_bias(plan, ExpertRole::kGateBias, spec.gate_bias, ffn, 2 * ffn, 0, 2);
      add_bias(plan, ExpertRole::kUpBias, spec.gate_bias, ffn, 2 * ffn, 1, 2);
      break;
  }
  add_bias(plan, ExpertRole::kDownBias, spec.down_bias, hidden, hidden, 0, 1);
  parts = std::move(plan.parts);
  return std::move(plan.sources);
}

// The file says what its slots hold; here it is compared with what the config promises.
void Binder::bind_packed_experts(LayerId layer) {
  const std::vector<LayerExperts>& layers = checkpoint_.packed->layers;
  const auto it = std::find_if(layers.begin(), layers.end(), [&](const LayerExperts& l) { return l.layer == layer; });
  if (it == layers.end()) {
    note_missing(fmt::format("experts of layer {}", layer));
    return;
  }
  const int64_t ffn = config_.expert_ffn, hidden = config_.hidden;
  EF_CHECK(int(it->count()) == config_.router.experts, ModelError, "{}: layer {}: expected {} experts, found {}",
           where(), layer, config_.router.experts, it->count());
  std::vector<int> seen(size_t(ExpertRole::kDownBias) + 1);
  for (const ExpertPart& part : it->layout.parts) {
    const bool down =
        part.role == ExpertRole::kDown || part.role == ExpertRole::kDownScales || part.role == ExpertRole::kDownBias;
    int64_t rows = down ? hidden : ffn, cols = down ? ffn : hidden;
    const bool matrix = part.role <= ExpertRole::kDown, bias = part.role >= ExpertRole::kGateBias;
    if (bias) cols = rows, rows = 1;
    if (!matrix && !bias) rows = blocks_of_128(rows), cols = blocks_of_128(cols);
    EF_CHECK(
        part.rows == rows && part.cols == cols && (matrix ? has_arithmetic(part.format) : part.format == Format::kF32),
        ModelError, "{}: layer {}: expected a part of [{}, {}], found [{}, {}] in {}", where(), layer, rows, cols,
        part.rows, part.cols, format_info(part.format).name);
    EF_CHECK(++seen[size_t(part.role)] == 1, ModelError, "{}: layer {}: expected each part once, found one twice",
             where(), layer);
  }
  for (const ExpertRole role : {ExpertRole::kGate, ExpertRole::kUp, ExpertRole::kDown}) {
    const ExpertPart* part = it->layout.find(role);
    EF_CHECK(part && (part->format == Format::kF8E4M3) == (it->layout.find(scales_of(role)) != nullptr), ModelError,
             "{}: layer {}: expected gate, up and down, with block scales if they are F8_E4M3 and only then", where(),
             layer);
  }
  out_.experts.push_back(*it);
}

void Binder::bind_experts(LayerId layer) {
  if (checkpoint_.packed) return bind_packed_experts(layer);
  const ExpertSpec* spec = choose_experts(layer);
  if (!spec) {
    note_missing_experts(gguf() ? arch_.gguf_experts.front() : arch_.hf_experts.front(), layer);
    return;
  }
  LayerExperts out;
  out.layer = layer;
  std::vector<size_t> order;  // parts as they lie in the file, so that one read fills many
  const size_t missing_before = missing_count_;
  for (ExpertId e = 0; e < config_.router.experts; ++e) {
    std::vector<ExpertPart> parts;
    std::vector<PartSource> sources = expert_sources(*spec, layer, e, parts);
    if (missing_count_ != missing_before) {
      if (is_stacked(spec->gate) && is_stacked(spec->down)) return;
      continue;
    }
    if (e == 0) {
      order.resize(parts.size());
      std::iota(order.begin(), order.end(), size_t(0));
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        const PartSource &x = sources[a], &y = sources[b];
        return std::tuple(x.tensor.file, x.tensor.offset) < std::tuple(y.tensor.file, y.tensor.offset);
      });
      for (size_t i : order) {
        ExpertPart part = parts[i];
        part.offset = out.layout.bytes;
        out.layout.bytes += aligned(part.bytes);
        out.layout.parts.push_back(part);
      }
    }
    std::vector<PartSource> ordered;
    for (size_t k = 0; k < order.size(); ++k) {
      const size_t i = order[k];
      const bool same = i < parts.size() && parts[i].format == out.layout.parts[k].format &&
                        parts[i].role == out.layout.parts[k].role;
      EF_CHECK(same && parts.size() == order.size(), ModelError,
               "{}: tensor {}: expected {} as for expert 0 of the layer, found {}",
               directory_.file_name(sources.at(std::min(i, sources.size() - 1)).tensor),
               sources.at(std::min(i, sources.size() - 1)).tensor.name, format_info(out.layout.parts[k].format).name,
               i < parts.size() ? format_info(parts[i].format).name : "nothing");
      ordered.push_back(std::move(sources[i]));
    }
    out.experts.push_back(std::move(ordered));
  }
  out_.experts.push_back(std::move(out));
}

}  // namespace ef
