// Where the bytes of a checkpoint are: names, formats, shapes, files, offsets. Built from headers alone; no weight is
// read.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "expertflow/base/io.h"
#include "expertflow/quant/formats.h"

namespace ef {

struct TensorInfo {
  std::string name;
  Format format = Format::kF32;
  /// Row-major, outermost first, whatever the file's convention: a linear layer is {out, in}, stacked experts {E, out,
  /// in}. (GGUF stores `ne` innermost first; the reader reverses it.)
  std::vector<int64_t> shape;
  int file = 0;         ///< index into TensorDirectory::files
  uint64_t offset = 0;  ///< absolute, from the start of the file
  uint64_t bytes = 0;

  int64_t elements() const;
  int64_t rows() const;            ///< product of all dimensions but the innermost (1 for a vector)
  int64_t cols() const;            ///< innermost dimension
  std::string shape_text() const;  ///< "[8, 64, 32]"
};

class TensorDirectory {
 public:
  /// Adds a file and returns its index.
  int add_file(std::shared_ptr<const ByteSource> source);
  /// Adds a file with its tensors (their `file` is set here).
  int add_file(std::shared_ptr<const ByteSource> source, std::vector<TensorInfo> tensors);
  /// Throws ModelError on a duplicate name (naming both files). The reader has checked shape, size and range.
  void add(TensorInfo tensor);

  const TensorInfo* find(std::string_view name) const;  ///< nullptr if absent
  /// A tensor that is needed: ModelError if it is absent or has no elements.
  const TensorInfo& at(std::string_view name) const;
  /// Checks many needed names at once: one ModelError lists all that are missing.
  void require(std::span<const std::string> names) const;
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< in order of addition
  const ByteSource& file(int index) const { return *files_[size_t(index)]; }
  int file_count() const { return int(files_.size()); }
  const std::string& file_name(const TensorInfo& t) const { return file(t.file).name(); }
  uint64_t total_bytes() const;

  /// Reads a whole tensor, or `bytes` at `offset` within it. out.size() bytes exactly.
  void read(const TensorInfo& tensor, uint64_t offset_in_tensor, std::span<std::byte> out) const;
  std::vector<std::byte> read(const TensorInfo& tensor) const;
  /// As float32; only formats with arithmetic (kF8E4M3 without scales), others are a ModelError: bytes are never taken
  /// for numbers.
  std::vector<float> read_f32(const TensorInfo& tensor) const;

  /// Replaces every file by wrap(file): tests inject faults, later issues O_DIRECT readers.
  void wrap_files(const std::function<std::shared_ptr<const ByteSource>(std::shared_ptr<const ByteSource>)>& wrap);

 private:
  std::vector<std::shared_ptr<const ByteSource>> files_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace ef
