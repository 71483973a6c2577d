// A matrix to be written, put together from places of a checkpoint: slices, stacks, transpositions, permutations. Read
// in runs of rows, so that a tensor of any size passes in bounded memory (a transposed matrix is held whole, one at a
// time).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "expertflow/weights/expert_store.h"
#include "expertflow/weights/tensor_directory.h"

namespace ef {

class RowSource {
 public:
  RowSource(Format format, int64_t rows, int64_t cols) : format_(format), rows_(rows), cols_(cols) {}
  virtual ~RowSource() = default;
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;

  Format format() const { return format_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  uint64_t row_bytes() const { return ef::row_bytes(format_, cols_); }
  /// Rows first .. first + count in format(): count * row_bytes() bytes. DeviceError from the files; a value that can
  /// be no weight (a block scale out of range) is a ModelError. Not for several threads at once.
  virtual void read(int64_t first, int64_t count, std::byte* out) = 0;
  /// Lets go of memory held between reads; the next read takes it again.
  virtual void release() {}

 private:
  Format format_;
  int64_t rows_, cols_;
};

using Rows = std::shared_ptr<RowSource>;

/// All rows of a tensor, or those from row_begin in steps of row_step. The directory must outlive the source.
Rows tensor_rows(const TensorDirectory& directory, const TensorInfo& tensor);
Rows tensor_rows(const TensorDirectory& directory, const TensorInfo& tensor, int64_t row_begin, int64_t row_step,
                 int64_t rows);
/// An FP8 tensor times its 128 x 128 block scales, as float32: `matrices` of equal size lie one after another.
Rows fp8_rows(const TensorDirectory& directory, const TensorInfo& tensor, const TensorInfo& scales, int64_t matrices,
              int64_t row_begin, int64_t rows);
/// Hugging Face's MXFP4 pair of tensors (nibbles and scales) as MXFP4 blocks of `cols` numbers a row.
Rows mxfp4_rows(const TensorDirectory& directory, const TensorInfo& blocks, const TensorInfo& scales, int64_t cols,
                int64_t row_begin, int64_t row_step, int64_t rows);
/// One part of a routed expert, as binding found it.
Rows expert_rows(const TensorDirectory& directory, const PartSource& part, const ExpertPart& layout);

/// Numbers at hand, as float32 in one row.
Rows constant_row(std::vector<float> values);

/// Sources of the same width, one under the other. Different formats become float32.
Rows stacked(std::vector<Rows> parts);
/// Row 0 of a, row 0 of b, row 1 of a, ...
Rows interleaved(Rows a, Rows b);
Rows slice(Rows source, int64_t first, int64_t rows);
/// Formats without blocks stay, others become float32.
Rows transposed(Rows source);
/// Row r of the result is row order[r] of the source.
Rows permuted(Rows source, std::vector<int64_t> order);
/// The same numbers in the same order in rows of another length; formats without blocks only.
Rows reshaped(Rows source, int64_t rows, int64_t cols);
Rows as_f32(Rows source);
/// Hugging Face's pair of MXFP4 tensors from MXFP4 rows: kU8, 16 bytes of nibbles or one exponent for each 32 numbers.
Rows mxfp4_nibbles(Rows source);
Rows mxfp4_exponents(Rows source);

/// count numbers from one format to another (which both have arithmetic; equal formats copy bytes); count is a multiple
/// of both blocks.
void convert_numbers(Format from, const std::byte* in, Format to, std::byte* out, int64_t count);

}  // namespace ef
