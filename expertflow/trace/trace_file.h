// Traces as files: a writer that streams step by step, and a reader that believes nothing. docs/traces.md is the
// format.
#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "expertflow/base/io.h"
#include "expertflow/base/output_file.h"
#include "expertflow/trace/trace.h"

namespace ef {

/// The file appears under its name when close() returns; before, and after an error, it is PATH.partial or nothing.
class TraceWriter {
 public:
  /// ConfigError if the header cannot be one (the field is named), DeviceError if the file cannot be created.
  TraceWriter(const std::filesystem::path& path, TraceHeader header);
  const TraceHeader& header() const { return header_; }
  /// ConfigError naming the field if the step does not fit the header: shapes, ids out of range, a chosen expert twice
  /// in a row. DeviceError if the disk refuses.
  void write(const TraceStep& step);
  /// Ends the file. Without it nothing is left under the name.
  void close();
  uint64_t steps() const { return steps_; }
  uint64_t rows() const { return rows_; }
  uint64_t bytes() const { return position_ + buffer_.size(); }

 private:
  void flush();

  TraceHeader header_;
  OutputFile file_;
  std::vector<std::byte> buffer_;
  uint64_t position_ = 0, steps_ = 0, rows_ = 0, last_step_ = 0;
  bool closed_ = false;
};

/// ModelError naming file, offset, what was expected and what was found, for: another kind or version of file, one that
/// is cut short or longer than it says, a damaged byte (every block carries a checksum), values out of range.
class TraceReader {
 public:
  explicit TraceReader(std::shared_ptr<const ByteSource> source);
  explicit TraceReader(const std::filesystem::path& path);
  const TraceHeader& header() const { return header_; }
  /// The next step; false after the last one, when the file has proved to be whole.
  bool next(TraceStep& step);
  uint64_t steps() const { return steps_; }  ///< read so far
  uint64_t rows() const { return rows_; }

 private:
  struct Block {
    uint64_t offset = 0;  ///< of its first byte in the file
    uint32_t kind = 0;
    std::span<const std::byte> payload;
  };
  Block read_block();
  void parse_header(const Block& block);
  void parse_step(const Block& block, TraceStep& step);
  void parse_end(const Block& block);

  std::shared_ptr<const ByteSource> source_;
  TraceHeader header_;
  std::vector<std::byte> buffer_;
  uint64_t position_ = 0, steps_ = 0, rows_ = 0, last_step_ = 0;
  bool ended_ = false;
};

struct Trace {
  TraceHeader header;
  std::vector<TraceStep> steps;
  uint64_t rows() const;
};
/// A whole file in memory. hidden_states: false drops them as they are read.
Trace read_trace(const std::filesystem::path& path, bool hidden_states = true);

}  // namespace ef
