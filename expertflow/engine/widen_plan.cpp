#include "expertflow/engine/widen_plan.h"

#include "expertflow/base/errors.h"

namespace ef {
namespace {

constexpr int64_t kFp8Block = 128;

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

/// What a routed expert's tensor is used for, gathered over all experts that it holds.
struct ExpertUse {
  PartSource source;
  bool gate = false, up = false;
  bool mxfp4_scales = false;
  bool fused_halves() const { return gate && up && source.row_step == 1; }
};

bool is_down(ExpertRole role) {
  return role == ExpertRole::kDown || role == ExpertRole::kDownBias || role == ExpertRole::kDownScales;
}
bool is_up(ExpertRole role) {
  return role == ExpertRole::kUp || role == ExpertRole::kUpBias || role == ExpertRole::kUpScales;
}
bool is_bias(ExpertRole role) {
  return role == ExpertRole::kGateBias || role == ExpertRole::kUpBias || role == ExpertRole::kDownBias;
}
bool is_scales(ExpertRole role) {
  return role == ExpertRole::kGateScales || role == ExpertRole::kUpScales || role == ExpertRole::kDownScales;
}

class Planner {
 public:
  Planner(const Config& config, const Checkpoint& source, const WidenFactors& factors)
      : config_(config), source_(source), factors_(factors) {}

  void add_bound(const BoundTensor& bound) {
    const TensorSpec& spec = *bound.spec;
    const AxisTiling rows{1, factor(spec.rows), false};
    // An intermediate axis as input: the copies of a neuron must not count.
    const AxisTiling cols{1, factor(spec.cols), spec.cols == Dim::kSharedFfn};
    TensorTiling tiling = matrix(bound.tensor, rows, cols, 0);
    if (spec.hidden_norm()) divide_norm(tiling);
    add(tiling);
    if (bound.scales.name.empty()) return;
    check_fp8(bound.tensor, bound.tensor.rows(), rows.copies);
    check_fp8(bound.tensor, bound.tensor.cols(), cols.copies);
    add(matrix(bound.scales, rows, {1, cols.copies, false}, 0));
  }

  void add_expert_part(const PartSource& part) {
    ExpertUse& use = uses_[part.tensor.name];
    use.source = part;
    use.gate |= !is_up(part.role) && !is_down(part.role);
    use.up |= is_up(part.role);
    if (part.unpack == Unpack::kMxfp4Pairs) {
      ExpertUse& scales = uses_[part.scales.name];
      scales = use;
      scales.source.tensor = part.scales;
      scales.mxfp4_scales = true;
    }
  }

  std::unordered_map<std::string, TensorTiling> finish() {
    for (const auto& [name, use] : uses_) add(expert_tiling(use));
    return std::move(plan_);
  }

 private:
  int factor(Dim dim) const {
    switch (dim) {
      case Dim::kHidden:
        return factors_.hidden;
      case Dim::kExpertFfn:
      case Dim::kExpertFfn2:
        return factors_.expert_ffn;
      case Dim::kSharedFfn:
        return factors_.shared_ffn;
      default:
        return 1;
    }
  }

  void add(const TensorTiling& tiling) { plan_.emplace(tiling.tensor.name, tiling); }

  /// The last two axes, but for `trailing` ones within a block, are rows and columns; those before are stacked
  /// matrices.
  TensorTiling matrix(const TensorInfo& t, const AxisTiling& rows, const AxisTiling& cols, size_t trailing) const {
    const size_t axes = t.shape.size();
    EF_CHECK(axes >= 1 + trailing, ModelError, "{}: tensor {}: expected at least {} dimensions, found {}", file(t),
             t.name, 1 + trailing, t.shape_text());
    TensorTiling tiling;
    tiling.tensor = t;
    tiling.format = t.format;
    tiling.shape = t.shape;
    tiling.row_axis = rows;
    tiling.col_axis = cols;
    const size_t col_axis = axes - 1 - trailing;
    check_groups(t, t.shape[col_axis], cols, trailing == 0 ? format_info(t.format).block_elements : 1);
    tiling.shape[col_axis] *= cols.copies;
    if (col_axis == 0) {
      EF_CHECK(rows.copies == 1, ModelError, "{}: tensor {}: expected a matrix, found {}", file(t), t.name,
               t.shape_text());
      return tiling;
    }
    tiling.rows = t.shape[col_axis - 1];
    check_groups(t, tiling.rows, rows, 1);
    tiling.shape[col_axis - 1] *= rows.copies;
    for (size_t i = 0; i + 1 < col_axis; ++i) tiling.outer *= t.shape[i];
    return tiling;
  }

  void check_groups(const TensorInfo& t, int64_t size, const AxisTiling& axis, int block) const {
    const int64_t unit = int64_t{axis.groups} * (axis.copies > 1 ? block : 1);
    EF_CHECK(size > 0 && size % unit == 0, ModelError,
             "{}: tensor {}: expected an axis that is a multiple of {} to tile blocks of {}, found {}", file(t), t.name,
             unit, format_info(t.format).name, size);
  }

  /// A tile of FP8 must begin where a 128x128 scale block begins.
  void check_fp8(const TensorInfo& t, int64_t size, int copies) const {
    EF_CHECK(copies == 1 || size % kFp8Block == 0, ModelError,
             "{}: tensor {}: expected an axis that is a multiple of {} to tile FP8 with its block scales, found {}",
             file(t), t.name, kFp8Block, size);
  }

  void divide_norm(TensorTiling& tiling) const {
    const TensorInfo& t = tiling.tensor;
    EF_CHECK(t.format == Format::kF32 || t.format == Format::kF16 || t.format == Format::kBF16, ModelError,
             "{}: tensor {}: expected a norm in F32, F16 or BF16, found {}", file(t), t.name,
             format_info(t.format).name);
    tiling.divisor = factors_.hidden;
    const bool exact = t.format == Format::kBF16 && is_power_of_two(factors_.hidden);
    if (tiling.divisor > 1 && !exact) tiling.format = Format::kF32;
  }

  TensorTiling expert_tiling(const ExpertUse& use) const {
    const PartSource& part = use.source;
    const TensorInfo& t = part.tensor;
    const AxisTiling hidden{1, factors_.hidden, false};
    AxisTiling neurons{use.fused_halves() ? 2 : 1, factors_.expert_ffn, false};
    if (is_bias(part.role)) return matrix(t, {}, is_down(part.role) ? hidden : neurons, 0);
    if (is_scales(part.role)) {
      check_fp8(t, config_.hidden, hidden.copies);
      check_fp8(t, config_.expert_ffn, neurons.copies);
    }
    neurons.zero_copies = is_down(part.role) && !is_scales(part.role) && !use.mxfp4_scales;
    const bool neurons_are_rows = is_down(part.role) == (part.unpack == Unpack::kTransposed);
    const size_t trailing = part.unpack == Unpack::kMxfp4Pairs && !use.mxfp4_scales ? t.shape.size() - 3 : 0;
    return neurons_are_rows ? matrix(t, neurons, hidden, trailing) : matrix(t, hidden, neurons, trailing);
  }

  const std::string& file(const TensorInfo& t) const { return source_.directory.file_name(t); }

  const Config& config_;
  const Checkpoint& source_;
  const WidenFactors factors_;
  std::unordered_map<std::string, ExpertUse> uses_;
  std::unordered_map<std::string, TensorTiling> plan_;
};

}  // namespace

std::unordered_map<std::string, TensorTiling> plan_widening(const Config& config, const Checkpoint& source,
                                                            const Binding& binding, const WidenFactors& factors) {
  Planner planner(config, source, factors);
  for (const BoundTensor& bound : binding.tensors) planner.add_bound(bound);
  for (const LayerExperts& layer : binding.experts) {
    for (const auto& parts : layer.experts) {
      for (const PartSource& part : parts) planner.add_expert_part(part);
    }
  }
  return planner.finish();
}

}  // namespace ef
