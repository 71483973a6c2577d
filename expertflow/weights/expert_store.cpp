#include "expertflow/weights/expert_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "expertflow/base/errors.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/quant/scalars.h"
#include "expertflow/quant/tiles.h"
#include "expertflow/weights/checked.h"

namespace ef {

namespace {

bool is_scales(ExpertRole role) {
  return role == ExpertRole::kGateScales || role == ExpertRole::kUpScales || role == ExpertRole::kDownScales;
}

bool is_bias(ExpertRole role) {
  return role == ExpertRole::kGateBias || role == ExpertRole::kUpBias || role == ExpertRole::kDownBias;
}

/// Bytes of a tensor that belong to one expert.
struct Slice {
  const TensorInfo* tensor = nullptr;
  uint64_t begin = 0, bytes = 0;  ///< within the tensor
  uint64_t file_offset() const { return tensor->offset + begin; }
};

Slice slice(const TensorInfo& tensor, const PartSource& source) {
  if (!source.stacked) return {&tensor, 0, tensor.bytes};
  uint64_t each = tensor.bytes / uint64_t(tensor.shape[0]);
  return {&tensor, uint64_t(source.index) * each, each};
}

/// The bytes that become the part as they are, if they are contiguous in the file.
std::optional<Slice> direct(const PartSource& source, const ExpertPart& part) {
  if (source.row_step != 1 || part.layout != MatrixLayout::kRows) return {};
  Slice whole = slice(source.tensor, source);
  if (source.unpack == Unpack::kRows)
    return Slice{whole.tensor, whole.begin + uint64_t(source.row_begin) * row_bytes(part.format, part.cols),
                 part.bytes};
  if (source.unpack == Unpack::kToF32 && source.tensor.format == Format::kF32)
    return Slice{whole.tensor, whole.begin + uint64_t(source.row_begin) * sizeof(float), part.bytes};
  return {};
}

/// Where a slice lies in staging memory. Slices that several parts need (gate and up fused) are read once.
struct Staged {
  int file;
  uint64_t file_offset, bytes, staging_offset;
};

struct Plan {
  std::vector<ExpertStore::Read> reads;
  std::vector<Staged> staged;
  uint64_t staging_bytes = 0;
  const Staged& find(const Slice& s) const {
    for (const Staged& item : staged)
      if (item.file == s.tensor->file && item.file_offset == s.file_offset()) return item;
    EF_DCHECK(false);
    return staged.front();
  }
};

constexpr uint64_t kStagingAlignment = 16;

void place_staged(Plan& plan) {
  auto& staged = plan.staged;
  auto order = [](const Staged& s) { return std::pair(s.file, s.file_offset); };
  std::sort(staged.begin(), staged.end(), [&](const Staged& a, const Staged& b) { return order(a) < order(b); });
  staged.erase(
      std::unique(staged.begin(), staged.end(), [&](const Staged& a, const Staged& b) { return order(a) == order(b); }),
      staged.end());
  for (Staged& s : staged) {
    plan.staging_bytes = (plan.staging_bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
    s.staging_offset = plan.staging_bytes;
    plan.staging_bytes += s.bytes;
    plan.reads.push_back({s.file, s.file_offset, s.bytes, true, s.staging_offset});
  }
}

void merge_adjacent(std::vector<ExpertStore::Read>& reads) {
  auto order = [](const ExpertStore::Read& r) { return std::tuple(r.file, r.file_offset); };
  std::sort(reads.begin(), reads.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  size_t kept = 0;
  for (size_t i = 1; i < reads.size(); ++i) {
    ExpertStore::Read& last = reads[kept];
    const ExpertStore::Read& next = reads[i];
    if (last.file == next.file && last.staged == next.staged && last.file_offset + last.bytes == next.file_offset &&
        last.destination + last.bytes == next.destination)
      last.bytes += next.bytes;
    else
      reads[++kept] = next;
  }
  if (!reads.empty()) reads.resize(kept + 1);
}

Plan make_plan(const ExpertLayout& layout, const std::vector<PartSource>& sources) {
  Plan plan;
  auto stage = [&](const Slice& s) { plan.staged.push_back({s.tensor->file, s.file_offset(), s.bytes, 0}); };
  for (size_t i = 0; i < sources.size(); ++i) {
    const PartSource& source = sources[i];
    if (auto d = direct(source, layout.parts[i])) {
      plan.reads.push_back({source.tensor.file, d->file_offset(), d->bytes, false, layout.parts[i].offset});
      continue;
    }
    stage(slice(source.tensor, source));
    if (source.unpack == Unpack::kMxfp4Pairs) stage(slice(source.scales, source));
  }
  place_staged(plan);
  merge_adjacent(plan.reads);
  return plan;
}

// ---- filling a part from staging ----

void copy_rows(const std::byte* from, const PartSource& source, const ExpertPart& part, std::byte* to) {
  const uint64_t row = row_bytes(part.format, part.cols);
  for (int64_t r = 0; r < part.rows; ++r)
    std::memcpy(to + uint64_t(r) * row, from + uint64_t(source.row_begin + r * source.row_step) * row, row);
}

template <size_t kWidth>
void transpose(const std::byte* from, int64_t file_rows, const PartSource& source, const ExpertPart& part,
               std::byte* to) {
  // Tiles keep both sides in cache: one side is always read or written across rows.
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < part.rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < part.cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(part.rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(part.cols, c0 + kTile); ++c)
          std::memcpy(to + size_t(r * part.cols + c) * kWidth,
                      from + size_t(c * file_rows + source.row_begin + r * source.row_step) * kWidth, kWidth);
}

void fill_transposed(const std::byte* from, const PartSource& source, const ExpertPart& part, std::byte* to) {
  const int64_t file_rows = source.tensor.cols();
  if (format_info(part.format).block_bytes == 2)
    transpose<2>(from, file_rows, source, part, to);
  else
    transpose<4>(from, file_rows, source, part, to);
}

void fill_mxfp4(const std::byte* nibbles, const std::byte* scales, const PartSource& source, const ExpertPart& part,
                std::byte* to, const std::string& file) {
  const int64_t blocks = part.cols / BlockMXFP4::kElements;
  for (int64_t r = 0; r < part.rows; ++r) {
    const int64_t from = (source.row_begin + r * source.row_step) * blocks;
    const auto* row_scales = reinterpret_cast<const uint8_t*>(scales) + from;
    EF_CHECK(std::find(row_scales, row_scales + blocks, uint8_t(255)) == row_scales + blocks, ModelError,
             "{}: tensor {}: scale of expert {}, row {} is NaN (E8M0 255)", file, source.scales.name, source.index,
             from / blocks);
    repack_mxfp4(reinterpret_cast<const uint8_t*>(nibbles) + from * 16, row_scales,
                 to + uint64_t(r * blocks) * sizeof(BlockMXFP4), blocks);
  }
}

void fill_f32(const std::byte* from, uint64_t bytes, const PartSource& source, const ExpertPart& part, std::byte* to) {
  const FormatInfo& info = format_info(source.tensor.format);
  const int64_t n = int64_t(bytes) / info.block_bytes * info.block_elements;
  std::vector<float> values(static_cast<size_t>(n));
  if (source.tensor.format == Format::kU8)
    for (size_t i = 0; i < values.size(); ++i) values[i] = e8m0_to_f32(uint8_t(from[i]));
  else
    info.dequantize(from, values.data(), n);
  const int64_t wanted = part.rows * part.cols;
  for (int64_t i = 0; i < wanted; ++i)
    std::memcpy(to + size_t(i) * sizeof(float), &values[size_t(source.row_begin + i * source.row_step)], sizeof(float));
}

// ---- checks at construction ----

struct Check {
  const TensorDirectory& directory;
  const PartSource& source;
  const ExpertPart& part;

  template <class... Args>
  void expect(bool good, const TensorInfo& tensor, fmt::format_string<Args...> f, Args&&... args) const {
    if (!good)
      fail<ModelError>("{}: tensor {}: {}", directory.file_name(tensor), tensor.name,
                       fmt::format(f, std::forward<Args>(args)...));
  }

  void stacking(const TensorInfo& tensor) const {
    if (!source.stacked) return;
    expect(!tensor.shape.empty() && tensor.shape[0] > source.index && source.index >= 0, tensor,
           "expected at least {} experts in the outermost dimension, found {}", source.index + 1, tensor.shape_text());
    expect(tensor.bytes % uint64_t(tensor.shape[0]) == 0, tensor,
           "{} bytes are not a whole number for each of {} experts", tensor.bytes, tensor.shape[0]);
  }

  /// Index of the last row (or element) that the part takes.
  uint64_t last() const {
    const int64_t n = source.unpack == Unpack::kToF32 ? part.rows * part.cols : part.rows;
    return uint64_t(source.row_begin) + uint64_t(n - 1) * uint64_t(source.row_step);
  }

  void bytes_at_least(const TensorInfo& tensor, uint64_t unit) const {
    const uint64_t have = slice(tensor, source).bytes;
    const auto need = checked_mul(last() + 1, unit);
    expect(need && *need <= have, tensor, "expected at least {} bytes an expert ({} rows of {}), found {}",
           need.value_or(0), last() + 1, unit, have);
  }

  void run() const {
    const TensorInfo& t = source.tensor;
    const FormatInfo& info = format_info(t.format);
    EF_DCHECK(source.row_begin >= 0 && source.row_step >= 1);
    stacking(t);
    switch (source.unpack) {
      case Unpack::kRows:
        expect(t.format == part.format, t, "expected {}, found {}", format_info(part.format).name, info.name);
        expect(t.cols() == part.cols, t, "expected rows of {} elements, found {}", part.cols, t.shape_text());
        bytes_at_least(t, row_bytes(part.format, part.cols));
        break;
      case Unpack::kTransposed:
        expect(t.format == part.format &&
                   (t.format == Format::kF32 || t.format == Format::kF16 || t.format == Format::kBF16),
               t, "expected F32, F16 or BF16 in a transposed layout, found {}", info.name);
        expect(
            int64_t(last()) < t.cols() && slice(t, source).bytes == uint64_t(part.cols) * row_bytes(t.format, t.cols()),
            t, "expected {} rows of at least {} elements an expert, found {}", part.cols, last() + 1, t.shape_text());
        break;
      case Unpack::kMxfp4Pairs:
        stacking(source.scales);
        expect(t.format == Format::kU8 && part.format == Format::kMXFP4, t, "expected U8, found {}", info.name);
        expect(source.scales.format == Format::kU8, source.scales, "expected U8, found {}",
               format_info(source.scales.format).name);
        bytes_at_least(t, uint64_t(part.cols) / 2);
        bytes_at_least(source.scales, uint64_t(part.cols) / BlockMXFP4::kElements);
        break;
      case Unpack::kToF32:
        expect(has_arithmetic(t.format) || (t.format == Format::kU8 && is_scales(part.role)), t,
               "expected numbers, found {}", info.name);
        expect(info.block_elements == 1, t, "expected a format without blocks, found {}", info.name);
        bytes_at_least(t, uint64_t(info.block_bytes));
        break;
    }
  }
};

void check_part(const ExpertPart& part, LayerId layer) {
  EF_CHECK(part.rows > 0 && part.cols > 0, ModelError, "layer {}: an expert part is empty", layer);
  const FormatInfo& info = format_info(part.format);
  EF_CHECK(part.cols % info.block_elements == 0, ModelError,
           "layer {}: expert rows of {} elements are not whole {} blocks of {}", layer, part.cols, info.name,
           info.block_elements);
  const auto bytes = checked_mul(uint64_t(part.rows), row_bytes(part.format, part.cols));
  EF_CHECK(bytes && *bytes == part.bytes && *bytes < (uint64_t(1) << 48), ModelError,
           "layer {}: an expert part of [{}, {}] is too large", layer, part.rows, part.cols);
}

}  // namespace

bool ExpertLayout::operator==(const ExpertLayout& other) const {
  auto same = [](const ExpertPart& a, const ExpertPart& b) {
    return a.role == b.role && a.format == b.format && a.rows == b.rows && a.cols == b.cols && a.offset == b.offset;
  };
  return bytes == other.bytes && std::equal(parts.begin(), parts.end(), other.parts.begin(), other.parts.end(), same);
}

const ExpertPart* ExpertLayout::find(ExpertRole role) const {
  for (const ExpertPart& part : parts)
    if (part.role == role) return &part;
  return nullptr;
}

ExpertStore::ExpertStore(const TensorDirectory& directory, std::vector<LayerExperts> layers)
    : directory_(directory), layers_(std::move(layers)) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerExperts& layer = layers_[i];
    EF_DCHECK(layer.layer >= 0);
    if (index_.size() <= size_t(layer.layer)) index_.resize(size_t(layer.layer) + 1, -1);
    index_[size_t(layer.layer)] = int(i);
    for (const ExpertPart& part : layer.layout.parts) check_part(part, layer.layer);
    for (const auto& sources : layer.experts) {
      EF_DCHECK(sources.size() == layer.layout.parts.size());
      for (size_t p = 0; p < sources.size(); ++p) Check{directory_, sources[p], layer.layout.parts[p]}.run();
    }
  }
}

void ExpertStore::choose_layouts(const std::function<MatrixLayout(Format)>& layout_of) {
  for (LayerExperts& layer : layers_)
    for (ExpertPart& part : layer.layout.parts)
      if (part.role <= ExpertRole::kDown) part.layout = layout_of(part.format);
}

bool ExpertStore::has_layer(LayerId layer) const {
  return layer >= 0 && size_t(layer) < index_.size() && index_[size_t(layer)] >= 0;
}

const LayerExperts& ExpertStore::at(LayerId layer) const {
  EF_DCHECK(has_layer(layer));
  return layers_[size_t(index_[size_t(layer)])];
}

const std::vector<PartSource>& ExpertStore::sources(ExpertKey key) const {
  const LayerExperts& layer = at(key.layer);
  EF_DCHECK(key.expert >= 0 && size_t(key.expert) < layer.experts.size());
  return layer.experts[size_t(key.expert)];
}

const ExpertLayout& ExpertStore::layout(LayerId layer) const { return at(layer).layout; }

int ExpertStore::experts(LayerId layer) const { return has_layer(layer) ? int(at(layer).experts.size()) : 0; }

uint64_t ExpertStore::max_slot_bytes() const {
  uint64_t most = 0;
  for (const LayerExperts& layer : layers_) most = std::max(most, layer.layout.bytes);
  return most;
}

uint64_t ExpertStore::total_bytes() const {
  uint64_t total = 0;
  for (const LayerExperts& layer : layers_) total += layer.layout.bytes * layer.experts.size();
  return total;
}

uint64_t ExpertStore::file_bytes(ExpertKey key) const {
  uint64_t total = 0;
  for (const Read& read : reads(key)) total += read.bytes;
  return total;
}

std::vector<ExpertStore::Read> ExpertStore::reads(ExpertKey key) const {
  return make_plan(at(key.layer).layout, sources(key)).reads;
}

uint64_t ExpertStore::staging_bytes(ExpertKey key) const {
  return make_plan(at(key.layer).layout, sources(key)).staging_bytes;
}

void ExpertStore::unpack(ExpertKey key, std::span<const std::byte> staging, std::span<std::byte> slot) const {
  const ExpertLayout& layout = at(key.layer).layout;
  const std::vector<PartSource>& parts = sources(key);
  EF_DCHECK(slot.size() >= layout.bytes);
  const Plan plan = make_plan(layout, parts);
  EF_DCHECK(staging.size() >= plan.staging_bytes);
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartSource& source = parts[i];
    const ExpertPart& part = layout.parts[i];
    const bool tiles = part.layout == MatrixLayout::kTiles16;
    if (tiles && source.unpack == Unpack::kRows && source.row_step == 1) {
      const Slice whole = slice(source.tensor, source);
      const std::byte* first = staging.data() + plan.find(whole).staging_offset +
                               uint64_t(source.row_begin) * row_bytes(part.format, part.cols);
      tile_matrix({part.format, part.rows, part.cols, first}, slot.data() + part.offset);
      continue;
    }
    std::vector<std::byte> rows(tiles ? part.bytes : 0);
    std::byte* to = tiles ? rows.data() : slot.data() + part.offset;
    if (!direct(source, part)) {
      const Slice whole = slice(source.tensor, source);
      const std::byte* from = staging.data() + plan.find(whole).staging_offset;
      switch (source.unpack) {
        case Unpack::kRows:
          copy_rows(from, source, part, to);
          break;
        case Unpack::kTransposed:
          fill_transposed(from, source, part, to);
          break;
        case Unpack::kMxfp4Pairs:
          fill_mxfp4(from, staging.data() + plan.find(slice(source.scales, source)).staging_offset, source, part, to,
                     directory_.file_name(source.scales));
          break;
        case Unpack::kToF32:
          fill_f32(from, whole.bytes, source, part, to);
          break;
      }
    }
    if (tiles) {
      tile_matrix({part.format, part.rows, part.cols, rows.data()}, slot.data() + part.offset);
      continue;
    }
    const std::span<const float> numbers{reinterpret_cast<const float*>(to), size_t(part.rows * part.cols)};
    if (is_scales(part.role)) check_block_scales(numbers, directory_.file_name(source.tensor), source.tensor.name);
    if (is_bias(part.role))
      for (float v : numbers)
        EF_CHECK(std::isfinite(v), ModelError, "{}: tensor {}: layer {}, expert {}: expected finite numbers, found {}",
                 directory_.file_name(source.tensor), source.tensor.name, key.layer, key.expert, v);
  }
}

void ExpertStore::fill(ExpertKey key, std::span<std::byte> slot, std::vector<std::byte>& staging) const {
  const Plan plan = make_plan(at(key.layer).layout, sources(key));
  if (staging.size() < plan.staging_bytes) staging.resize(plan.staging_bytes);
  for (const Read& read : plan.reads) {
    std::byte* to = (read.staged ? staging.data() : slot.data()) + read.destination;
    try {
      directory_.file(read.file).read(read.file_offset, {to, size_t(read.bytes)});
    } catch (const DeviceError& error) {
      fail<DeviceError>("layer {}, expert {}: {}", key.layer, key.expert, error.what());
    }
  }
  unpack(key, staging, slot);
}

void ExpertStore::check_scales() const {
  std::vector<std::byte> bytes, values;
  for (const LayerExperts& layer : layers_)
    for (const auto& sources : layer.experts)
      for (size_t i = 0; i < sources.size(); ++i) {
        const PartSource& source = sources[i];
        const ExpertPart& part = layer.layout.parts[i];
        if (!is_scales(part.role)) continue;
        const Slice whole = slice(source.tensor, source);
        bytes.resize(whole.bytes);
        values.resize(part.bytes);
        directory_.read(source.tensor, whole.begin, bytes);
        if (source.unpack == Unpack::kRows)
          copy_rows(bytes.data(), source, part, values.data());
        else
          fill_f32(bytes.data(), whole.bytes, source, part, values.data());
        check_block_scales({reinterpret_cast<const float*>(values.data()), size_t(part.rows * part.cols)},
                           directory_.file_name(source.tensor), source.tensor.name);
      }
}

void check_block_scales(std::span<const float> scales, const std::string& file, const std::string& tensor) {
  for (size_t i = 0; i < scales.size(); ++i)
    EF_CHECK(std::isfinite(scales[i]) && scales[i] >= 0 && scales[i] <= kMaxBlockScale, ModelError,
             "{}: tensor {}: block scale {}: expected 0 to {}, found {}", file, tensor, i, kMaxBlockScale, scales[i]);
}

ExpertView view_slot(const ExpertLayout& layout, const std::byte* slot) {
  auto matrix = [&](ExpertRole role, ExpertRole scales) {
    const ExpertPart* part = layout.find(role);
    const ExpertPart* s = layout.find(scales);
    MatrixView view;
    if (part) view = {part->format, part->rows, part->cols, slot + part->offset, nullptr, part->layout};
    if (s) view.scales = reinterpret_cast<const float*>(slot + s->offset);
    return view;
  };
  auto bias = [&](ExpertRole role) {
    const ExpertPart* part = layout.find(role);
    return part ? reinterpret_cast<const float*>(slot + part->offset) : nullptr;
  };
  return {matrix(ExpertRole::kGate, ExpertRole::kGateScales),
          matrix(ExpertRole::kUp, ExpertRole::kUpScales),
          matrix(ExpertRole::kDown, ExpertRole::kDownScales),
          bias(ExpertRole::kGateBias),
          bias(ExpertRole::kUpBias),
          bias(ExpertRole::kDownBias)};
}

}  // namespace ef
