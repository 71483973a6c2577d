#include "expertflow/weights/expert_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "expertflow/base/errors.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/expert_plan.h"

namespace ef {

namespace {

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
    const uint64_t have = slice_of(tensor, source).bytes;
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
        expect(int64_t(last()) < t.cols() &&
                   slice_of(t, source).bytes == uint64_t(part.cols) * row_bytes(t.format, t.cols()),
               t, "expected {} rows of at least {} elements an expert, found {}", part.cols, last() + 1,
               t.shape_text());
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

void check_image_range(const ExpertImage& image, const LayerExperts& layer, const TensorDirectory& directory) {
  const ByteSource& file = directory.file(image.file);
  EF_CHECK(image.bytes == layer.layout.bytes && image.bytes <= file.size() && image.offset <= file.size() - image.bytes,
           ModelError, "{}: layer {}: expected an expert of {} bytes within the file's {}, found {} at offset {}",
           file.name(), layer.layer, layer.layout.bytes, file.size(), image.bytes, image.offset);
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
    EF_DCHECK(layer.images.empty() || layer.image_layouts.size() == layer.layout.parts.size());
    for (const ExpertImage& image : layer.images) check_image_range(image, layer, directory_);
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

int ExpertStore::experts(LayerId layer) const { return has_layer(layer) ? int(at(layer).count()) : 0; }

uint64_t ExpertStore::max_slot_bytes() const {
  uint64_t most = 0;
  for (const LayerExperts& layer : layers_) most = std::max(most, layer.layout.bytes);
  return most;
}

uint64_t ExpertStore::total_bytes() const {
  uint64_t total = 0;
  for (const LayerExperts& layer : layers_) total += layer.layout.bytes * layer.count();
  return total;
}

uint64_t ExpertStore::file_bytes(ExpertKey key) const {
  uint64_t total = 0;
  if (const ExpertImage* block = image(key)) return block->bytes;
  for (const FillUnit& unit : units(key))
    for (const ByteRange& range : unit.ranges) total += range.bytes;
  return total;
}

const ExpertImage* ExpertStore::image(ExpertKey key) const {
  const LayerExperts& layer = at(key.layer);
  if (layer.images.empty()) return nullptr;
  EF_DCHECK(key.expert >= 0 && size_t(key.expert) < layer.images.size());
  return &layer.images[size_t(key.expert)];
}

uint64_t image_checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

void ExpertStore::finish_image(ExpertKey key, std::span<std::byte> slot) const {
  const ExpertImage& image = *this->image(key);
  const uint64_t found = image_checksum(slot.first(image.bytes));
  EF_CHECK(found == image.checksum, ModelError,
           "{}: layer {}, expert {}: expected {} bytes at offset {} with checksum {:016x}, found {:016x}",
           directory_.file(image.file).name(), key.layer, key.expert, image.bytes, image.offset, image.checksum, found);
  const LayerExperts& layer = at(key.layer);
  for (size_t p = 0; p < layer.layout.parts.size(); ++p)
    change_layout(layer.layout.parts[p], layer.image_layouts[p], slot.data());
}

std::vector<FillUnit> ExpertStore::units(ExpertKey key) const {
  if (image(key)) return {};
  return plan_fill(at(key.layer).layout, sources(key));
}

void ExpertStore::unpack(ExpertKey key, const FillUnit& unit, std::span<const std::byte* const> raw,
                         std::span<std::byte> slot) const {
  const ExpertLayout& layout = at(key.layer).layout;
  const std::vector<PartSource>& parts = sources(key);
  EF_DCHECK(slot.size() >= layout.bytes && raw.size() == unit.ranges.size());
  try {
    for (const FillPiece& piece : unit.pieces)
      unpack_piece(piece, parts[piece.part], layout.parts[piece.part], raw, slot.data(),
                   directory_.file_name(parts[piece.part].tensor));
  } catch (const ModelError& error) {
    fail<ModelError>("layer {}, expert {}: {}", key.layer, key.expert, error.what());
  }
}

void ExpertStore::fill(ExpertKey key, std::span<std::byte> slot, std::vector<std::byte>& staging) const {
  const auto read = [&](const ByteRange& range, std::byte* to) {
    try {
      directory_.file(range.file).read(range.offset, {to, size_t(range.bytes)});
    } catch (const DeviceError& error) {
      fail<DeviceError>("layer {}, expert {}: {}", key.layer, key.expert, error.what());
    }
  };
  if (const ExpertImage* block = image(key)) {
    read({block->file, block->offset, block->bytes}, slot.data());
    finish_image(key, slot);
    return;
  }
  for (const FillUnit& unit : units(key)) {
    uint64_t bytes = 0;
    for (const ByteRange& range : unit.ranges) bytes += range.bytes;
    if (staging.size() < bytes) staging.resize(bytes);
    std::vector<const std::byte*> raw;
    std::byte* to = staging.data();
    for (const ByteRange& range : unit.ranges) {
      read(range, to);
      raw.push_back(to);
      to += range.bytes;
    }
    unpack(key, unit, raw, slot);
  }
}

void ExpertStore::check_scales() const {
  std::vector<std::byte> bytes, values;
  for (const LayerExperts& layer : layers_)
    for (size_t p = 0; p < layer.layout.parts.size(); ++p) {
      const ExpertPart& part = layer.layout.parts[p];
      if (!is_scales(part.role)) continue;
      for (const auto& sources : layer.experts) {
        const PartSource& source = sources[p];
        const Slice whole = slice_of(source.tensor, source);
        bytes.resize(whole.bytes);
        values.resize(part.bytes);
        directory_.read(source.tensor, whole.begin, bytes);
        ExpertPart alone = part;
        alone.offset = 0;
        const std::byte* const raw = bytes.data();
        unpack_piece({p, 0, part.rows, 0, 0}, source, alone, {&raw, 1}, values.data(),
                     directory_.file_name(source.tensor));
      }
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
