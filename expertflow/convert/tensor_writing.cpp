#include "expertflow/convert/tensor_writing.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/weights/load.h"

namespace ef {

namespace fs = std::filesystem;

double ConversionError::rms() const { return count > 0 ? std::sqrt(squared_error / double(count)) : 0; }
double ConversionError::relative() const { return squared_sum > 0 ? std::sqrt(squared_error / squared_sum) : 0; }

uint64_t planned_bytes(const OutTensor& t) { return uint64_t(t.rows->rows()) * row_bytes(t.format, t.rows->cols()); }

namespace {

class Converter {
 public:
  Converter(CheckpointWriter& writer, ThreadPool& pool, uint64_t buffer_bytes, std::function<void(uint64_t)> wrote)
      : writer_(writer), pool_(pool), buffer_bytes_(buffer_bytes), wrote_(std::move(wrote)) {}

  ConversionError write(const OutTensor& t, bool measure) {
    ConversionError error;
    RowSource& rows = *t.rows;
    const bool copied = rows.format() == t.format;
    const uint64_t in_row = rows.row_bytes(), out_row = row_bytes(t.format, rows.cols());
    const int64_t run = std::max<int64_t>(1, int64_t(buffer_bytes_ / std::max<uint64_t>(1, in_row + out_row)));
    for (int64_t first = 0; first < rows.rows(); first += run) {
      const int64_t n = std::min(run, rows.rows() - first);
      std::byte* in = reserve(in_, uint64_t(n) * in_row);
      rows.read(first, n, in);
      if (copied) {
        emit(in, uint64_t(n) * in_row);
        continue;
      }
      std::byte* out = reserve(out_, uint64_t(n) * out_row);
      convert_rows(t, in, out, n, measure, error);
      emit(out, uint64_t(n) * out_row);
    }
    rows.release();
    if (copied) error.count = rows.rows() * rows.cols();
    return error;
  }

 private:
  static std::byte* reserve(AlignedBuffer& buffer, uint64_t bytes) {
    if (buffer.size() < bytes) buffer = AlignedBuffer(bytes);
    return buffer.data();
  }

  void emit(const std::byte* bytes, uint64_t count) {
    writer_.write({bytes, size_t(count)});
    wrote_(count);
  }

  void convert_rows(const OutTensor& t, const std::byte* in, std::byte* out, int64_t n, bool measure,
                    ConversionError& error) {
    const Format from = t.rows->format();
    const int64_t cols = t.rows->cols();
    const uint64_t in_row = row_bytes(from, cols), out_row = row_bytes(t.format, cols);
    const bool into_blocks = format_info(t.format).block_elements > 1;
    std::vector<ConversionError> by_row(static_cast<size_t>(measure ? n : 0));
    const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, cols));
    pool_.parallel_for(n, grain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> before(static_cast<size_t>(cols)), after(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        format_info(from).dequantize(in + uint64_t(r) * in_row, before.data(), cols);
        if (into_blocks) check_finite(t, before);
        std::byte* to = out + uint64_t(r) * out_row;
        format_info(t.format).quantize(before.data(), to, cols);
        if (!measure) continue;
        format_info(t.format).dequantize(to, after.data(), cols);
        ConversionError& e = by_row[size_t(r)];
        for (size_t c = 0; c < before.size(); ++c) {
          const double difference = double(after[c]) - double(before[c]);
          e.squared_error += difference * difference;
          e.squared_sum += double(before[c]) * double(before[c]);
        }
      }
    });
    // In the rows' order, whatever thread took them.
    for (const ConversionError& e : by_row)
      error.squared_error += e.squared_error, error.squared_sum += e.squared_sum, error.count += cols;
  }

  static void check_finite(const OutTensor& t, const std::vector<float>& row) {
    for (const float v : row)
      EF_CHECK(std::isfinite(v), ModelError, "tensor {}: expected finite numbers to store as {}, found {}", t.name,
               format_info(t.format).name, v);
  }

  CheckpointWriter& writer_;
  ThreadPool& pool_;
  const uint64_t buffer_bytes_;
  const std::function<void(uint64_t)> wrote_;
  AlignedBuffer in_, out_;
};

}  // namespace

void write_tensors(const std::vector<OutTensor>& tensors, CheckpointWriter& writer, ThreadPool& pool,
                   uint64_t buffer_bytes, const ConvertProgress& progress, std::vector<ConversionError>* errors) {
  uint64_t total = 0, done = 0;
  for (const OutTensor& t : tensors) {
    writer.declare(t.name, t.format, t.shape);
    total += planned_bytes(t);
  }
  Converter converter(writer, pool, buffer_bytes, [&](uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  });
  for (const OutTensor& t : tensors) {
    const ConversionError error = converter.write(t, errors != nullptr);
    if (errors) errors->push_back(error);
  }
  writer.finish();
}

void check_output_folder(const fs::path& out) {
  EF_CHECK(!fs::exists(out) || (fs::is_directory(out) && fs::is_empty(out)), ConfigError,
           "{}: expected a folder that does not exist yet or is empty, found {}", out.string(),
           fs::is_directory(out) ? "one with files" : "a file");
}

}  // namespace ef
