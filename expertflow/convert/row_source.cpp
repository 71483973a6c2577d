#include "expertflow/convert/row_source.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "expertflow/base/errors.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/quant/scalars.h"

namespace ef {

void convert_numbers(Format from, const std::byte* in, Format to, std::byte* out, int64_t count) {
  if (from == to) {
    std::memcpy(out, in, row_bytes(from, count));
    return;
  }
  // Multiples of every block, few enough for the stack.
  constexpr int64_t kRun = 1024;
  float numbers[kRun];
  for (int64_t i = 0; i < count; i += kRun) {
    const int64_t n = std::min(kRun, count - i);
    format_info(from).dequantize(in + row_bytes(from, i), numbers, n);
    format_info(to).quantize(numbers, out + row_bytes(to, i), n);
  }
}

namespace {

constexpr int64_t kScaleBlock = 128;

bool is_scalar(Format f) { return format_info(f).block_elements == 1; }

class TensorRows final : public RowSource {
 public:
  TensorRows(const TensorDirectory& directory, const TensorInfo& tensor, int64_t begin, int64_t step, int64_t rows)
      : RowSource(tensor.format, rows, tensor.cols()),
        directory_(directory),
        tensor_(tensor),
        begin_(begin),
        step_(step) {
    EF_DCHECK(rows == 0 || begin + (rows - 1) * step < tensor.rows());
  }
  void read(int64_t first, int64_t count, std::byte* out) override {
    if (step_ == 1) {
      directory_.read(tensor_, uint64_t(begin_ + first) * row_bytes(), {out, size_t(count) * row_bytes()});
      return;
    }
    for (int64_t r = 0; r < count; ++r)
      directory_.read(tensor_, uint64_t(begin_ + (first + r) * step_) * row_bytes(),
                      {out + size_t(r) * row_bytes(), row_bytes()});
  }

 private:
  const TensorDirectory& directory_;
  TensorInfo tensor_;
  int64_t begin_, step_;
};

class Fp8Rows final : public RowSource {
 public:
  Fp8Rows(const TensorDirectory& directory, const TensorInfo& tensor, const TensorInfo& scales, int64_t matrices,
          int64_t begin, int64_t rows)
      : RowSource(Format::kF32, rows, tensor.cols()),
        directory_(directory),
        tensor_(tensor),
        scales_(scales),
        matrix_rows_(tensor.rows() / matrices),
        begin_(begin) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    bytes_.resize(size_t(cols()));
    const int64_t blocks = (cols() + kScaleBlock - 1) / kScaleBlock;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = begin_ + first + r, matrix = row / matrix_rows_, inner = row % matrix_rows_;
      directory_.read(tensor_, uint64_t(row * cols()), bytes_);
      const int64_t block_rows = (matrix_rows_ + kScaleBlock - 1) / kScaleBlock;
      load_scales(matrix * block_rows + inner / kScaleBlock, blocks);
      float* to = reinterpret_cast<float*>(out) + r * cols();
      for (int64_t c = 0; c < cols(); ++c)
        to[c] = e4m3_to_f32(uint8_t(bytes_[size_t(c)])) * row_scales_[size_t(c / kScaleBlock)];
    }
  }

 private:
  void load_scales(int64_t scale_row, int64_t blocks) {
    if (scale_row == loaded_) return;
    const FormatInfo& info = format_info(scales_.format);
    std::vector<std::byte> raw(size_t(blocks) * size_t(info.block_bytes));
    directory_.read(scales_, uint64_t(scale_row) * raw.size(), raw);
    row_scales_.resize(size_t(blocks));
    if (scales_.format == Format::kU8) {
      for (size_t i = 0; i < raw.size(); ++i) row_scales_[i] = e8m0_to_f32(uint8_t(raw[i]));
    } else {
      info.dequantize(raw.data(), row_scales_.data(), blocks);
    }
    check_block_scales(row_scales_, directory_.file_name(scales_), scales_.name);
    loaded_ = scale_row;
  }

  const TensorDirectory& directory_;
  TensorInfo tensor_, scales_;
  int64_t matrix_rows_, begin_, loaded_ = -1;
  std::vector<std::byte> bytes_;
  std::vector<float> row_scales_;
};

class Mxfp4Rows final : public RowSource {
 public:
  Mxfp4Rows(const TensorDirectory& directory, const TensorInfo& blocks, const TensorInfo& scales, int64_t cols,
            int64_t begin, int64_t step, int64_t rows)
      : RowSource(Format::kMXFP4, rows, cols),
        directory_(directory),
        blocks_(blocks),
        scales_(scales),
        begin_(begin),
        step_(step) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    const size_t groups = size_t(cols() / BlockMXFP4::kElements);
    nibbles_.resize(groups * 16);
    exponents_.resize(groups);
    for (int64_t r = 0; r < count; ++r) {
      const uint64_t row = uint64_t(begin_ + (first + r) * step_);
      directory_.read(blocks_, row * nibbles_.size(), std::as_writable_bytes(std::span(nibbles_)));
      directory_.read(scales_, row * groups, std::as_writable_bytes(std::span(exponents_)));
      repack_mxfp4(nibbles_.data(), exponents_.data(), out + size_t(r) * row_bytes(), int64_t(groups));
    }
  }

 private:
  const TensorDirectory& directory_;
  TensorInfo blocks_, scales_;
  int64_t begin_, step_;
  std::vector<uint8_t> nibbles_, exponents_;
};

class ConstantRow final : public RowSource {
 public:
  explicit ConstantRow(std::vector<float> values)
      : RowSource(Format::kF32, 1, int64_t(values.size())), values_(std::move(values)) {}
  void read(int64_t, int64_t count, std::byte* out) override {
    if (count > 0) std::memcpy(out, values_.data(), values_.size() * sizeof(float));
  }

 private:
  std::vector<float> values_;
};

class Stacked final : public RowSource {
 public:
  explicit Stacked(std::vector<Rows> parts)
      : RowSource(parts.front()->format(), total(parts), parts.front()->cols()), parts_(std::move(parts)) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    // Runs come in order: the part found last is looked at first.
    if (first < part_begin_) release();
    while (count > 0) {
      while (first >= part_begin_ + parts_[at_]->rows()) {
        parts_[at_]->release();
        part_begin_ += parts_[at_++]->rows();
      }
      const int64_t inside = first - part_begin_, n = std::min(count, parts_[at_]->rows() - inside);
      parts_[at_]->read(inside, n, out);
      first += n, count -= n, out += size_t(n) * row_bytes();
    }
  }
  void release() override {
    parts_[std::min(at_, parts_.size() - 1)]->release();
    at_ = 0, part_begin_ = 0;
  }

 private:
  static int64_t total(const std::vector<Rows>& parts) {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                           [](int64_t n, const Rows& p) { return n + p->rows(); });
  }
  std::vector<Rows> parts_;
  size_t at_ = 0;
  int64_t part_begin_ = 0;
};

class Interleaved final : public RowSource {
 public:
  Interleaved(Rows a, Rows b) : RowSource(a->format(), 2 * a->rows(), a->cols()), a_(std::move(a)), b_(std::move(b)) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    for (int64_t r = first; r < first + count; ++r, out += row_bytes()) (r % 2 ? b_ : a_)->read(r / 2, 1, out);
  }
  void release() override { a_->release(), b_->release(); }

 private:
  Rows a_, b_;
};

class Slice final : public RowSource {
 public:
  Slice(Rows source, int64_t first, int64_t rows)
      : RowSource(source->format(), rows, source->cols()), source_(std::move(source)), first_(first) {}
  void read(int64_t first, int64_t count, std::byte* out) override { source_->read(first_ + first, count, out); }
  void release() override { source_->release(); }

 private:
  Rows source_;
  int64_t first_;
};

class Permuted final : public RowSource {
 public:
  Permuted(Rows source, std::vector<int64_t> order)
      : RowSource(source->format(), int64_t(order.size()), source->cols()),
        source_(std::move(source)),
        order_(std::move(order)) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    for (int64_t r = first; r < first + count; ++r, out += row_bytes()) source_->read(order_[size_t(r)], 1, out);
  }
  void release() override { source_->release(); }

 private:
  Rows source_;
  std::vector<int64_t> order_;
};

/// Holds the source whole until released.
class Transposed final : public RowSource {
 public:
  explicit Transposed(Rows source)
      : RowSource(source->format(), source->cols(), source->rows()), source_(std::move(source)) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    const size_t width = size_t(format_info(format()).block_bytes);
    if (held_.empty()) {
      held_.resize(size_t(source_->rows()) * source_->row_bytes());
      source_->read(0, source_->rows(), held_.data());
    }
    constexpr int64_t kTile = 32;
    for (int64_t r0 = 0; r0 < count; r0 += kTile)
      for (int64_t c0 = 0; c0 < cols(); c0 += kTile)
        for (int64_t r = r0; r < std::min(count, r0 + kTile); ++r)
          for (int64_t c = c0; c < std::min(cols(), c0 + kTile); ++c)
            std::memcpy(out + size_t(r * cols() + c) * width, held_.data() + size_t(c * rows() + first + r) * width,
                        width);
  }
  void release() override { std::vector<std::byte>().swap(held_); }

 private:
  Rows source_;
  std::vector<std::byte> held_;
};

class Reshaped final : public RowSource {
 public:
  Reshaped(Rows source, int64_t rows, int64_t cols)
      : RowSource(source->format(), rows, cols), source_(std::move(source)) {}
  /// Small vectors only (stacked biases): the source is read whole.
  void read(int64_t first, int64_t count, std::byte* out) override {
    std::vector<std::byte> all(size_t(source_->rows()) * source_->row_bytes());
    source_->read(0, source_->rows(), all.data());
    std::memcpy(out, all.data() + size_t(first) * row_bytes(), size_t(count) * row_bytes());
  }
  void release() override { source_->release(); }

 private:
  Rows source_;
};

class AsF32 final : public RowSource {
 public:
  explicit AsF32(Rows source) : RowSource(Format::kF32, source->rows(), source->cols()), source_(std::move(source)) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    raw_.resize(size_t(count) * source_->row_bytes());
    source_->read(first, count, raw_.data());
    format_info(source_->format()).dequantize(raw_.data(), reinterpret_cast<float*>(out), count * cols());
  }
  void release() override { source_->release(); }

 private:
  Rows source_;
  std::vector<std::byte> raw_;
};

class Mxfp4Half final : public RowSource {
 public:
  Mxfp4Half(Rows source, bool nibbles)
      : RowSource(Format::kU8, source->rows(), source->cols() / (nibbles ? 2 : BlockMXFP4::kElements)),
        source_(std::move(source)),
        nibbles_(nibbles) {}
  void read(int64_t first, int64_t count, std::byte* out) override {
    const int64_t blocks = count * source_->cols() / BlockMXFP4::kElements;
    raw_.resize(size_t(blocks) * sizeof(BlockMXFP4));
    source_->read(first, count, raw_.data());
    std::vector<uint8_t> other(size_t(blocks) * (nibbles_ ? 1 : 16));
    uint8_t* to = reinterpret_cast<uint8_t*>(out);
    unpack_mxfp4(raw_.data(), nibbles_ ? to : other.data(), nibbles_ ? other.data() : to, blocks);
  }
  void release() override { source_->release(); }

 private:
  Rows source_;
  bool nibbles_;
  std::vector<std::byte> raw_;
};

/// Every row_step-th number of an expert's vector.
Rows strided_vector(const TensorDirectory& directory, const PartSource& part, int64_t n) {
  const int64_t each = part.stacked ? part.tensor.cols() : part.tensor.elements();
  std::vector<std::byte> raw(row_bytes(part.tensor.format, each));
  directory.read(part.tensor, uint64_t(part.index) * raw.size(), raw);
  std::vector<float> all(static_cast<size_t>(each)), out(static_cast<size_t>(n));
  format_info(part.tensor.format).dequantize(raw.data(), all.data(), each);
  for (int64_t i = 0; i < n; ++i) out[size_t(i)] = all[size_t(part.row_begin + i * part.row_step)];
  return constant_row(std::move(out));
}

}  // namespace

Rows tensor_rows(const TensorDirectory& directory, const TensorInfo& tensor) {
  return std::make_shared<TensorRows>(directory, tensor, 0, 1, tensor.rows());
}

Rows tensor_rows(const TensorDirectory& directory, const TensorInfo& tensor, int64_t row_begin, int64_t row_step,
                 int64_t rows) {
  return std::make_shared<TensorRows>(directory, tensor, row_begin, row_step, rows);
}

Rows fp8_rows(const TensorDirectory& directory, const TensorInfo& tensor, const TensorInfo& scales, int64_t matrices,
              int64_t row_begin, int64_t rows) {
  return std::make_shared<Fp8Rows>(directory, tensor, scales, matrices, row_begin, rows);
}

Rows mxfp4_rows(const TensorDirectory& directory, const TensorInfo& blocks, const TensorInfo& scales, int64_t cols,
                int64_t row_begin, int64_t row_step, int64_t rows) {
  return std::make_shared<Mxfp4Rows>(directory, blocks, scales, cols, row_begin, row_step, rows);
}

Rows expert_rows(const TensorDirectory& directory, const PartSource& part, const ExpertPart& layout) {
  const TensorInfo& t = part.tensor;
  const int64_t experts = part.stacked ? t.shape.front() : 1;
  switch (part.unpack) {
    case Unpack::kRows: {
      const int64_t begin = part.index * (t.rows() / experts) + part.row_begin;
      return tensor_rows(directory, t, begin, part.row_step, layout.rows);
    }
    case Unpack::kMxfp4Pairs: {
      const int64_t file_rows = part.scales.rows() / experts;
      return mxfp4_rows(directory, t, part.scales, layout.cols, part.index * file_rows + part.row_begin, part.row_step,
                        layout.rows);
    }
    case Unpack::kTransposed: {
      // The file holds [cols, file rows].
      Rows whole = transposed(tensor_rows(directory, t, part.index * layout.cols, 1, layout.cols));
      if (part.row_step == 1) return slice(std::move(whole), part.row_begin, layout.rows);
      std::vector<int64_t> order(static_cast<size_t>(layout.rows));
      for (int64_t r = 0; r < layout.rows; ++r) order[size_t(r)] = part.row_begin + r * part.row_step;
      return permuted(std::move(whole), std::move(order));
    }
    case Unpack::kToF32:
      break;
  }
  return strided_vector(directory, part, layout.cols);
}

Rows constant_row(std::vector<float> values) { return std::make_shared<ConstantRow>(std::move(values)); }

Rows stacked(std::vector<Rows> parts) {
  EF_DCHECK(!parts.empty());
  const bool mixed = std::any_of(parts.begin(), parts.end(),
                                 [&](const Rows& part) { return part->format() != parts.front()->format(); });
  if (mixed)
    for (Rows& part : parts) part = as_f32(std::move(part));
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_shared<Stacked>(std::move(parts));
}

Rows interleaved(Rows a, Rows b) {
  if (a->format() != b->format()) a = as_f32(std::move(a)), b = as_f32(std::move(b));
  return std::make_shared<Interleaved>(std::move(a), std::move(b));
}

Rows slice(Rows source, int64_t first, int64_t rows) { return std::make_shared<Slice>(std::move(source), first, rows); }

Rows transposed(Rows source) {
  if (!is_scalar(source->format())) source = as_f32(std::move(source));
  return std::make_shared<Transposed>(std::move(source));
}

Rows permuted(Rows source, std::vector<int64_t> order) {
  return std::make_shared<Permuted>(std::move(source), std::move(order));
}

Rows reshaped(Rows source, int64_t rows, int64_t cols) {
  EF_DCHECK(is_scalar(source->format()) && rows * cols == source->rows() * source->cols());
  return std::make_shared<Reshaped>(std::move(source), rows, cols);
}

Rows as_f32(Rows source) {
  if (source->format() == Format::kF32) return source;
  return std::make_shared<AsF32>(std::move(source));
}

Rows mxfp4_nibbles(Rows source) { return std::make_shared<Mxfp4Half>(std::move(source), true); }
Rows mxfp4_exponents(Rows source) { return std::make_shared<Mxfp4Half>(std::move(source), false); }

}  // namespace ef
