#include "expertflow/trace/trace_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "expertflow/base/errors.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ef {
namespace {

constexpr std::array<char, 8> kMagic = {'E', 'F', 'T', 'R', 'A', 'C', 'E', '\n'};
constexpr uint32_t kHeaderBlock = 0x52444148;  // "HADR"
constexpr uint32_t kStepBlock = 0x50455453;    // "STEP"
constexpr uint32_t kEndBlock = 0x21444E45;     // "END!"
constexpr uint64_t kFront = 12, kBlockHead = 12, kChecksum = 8;
// Bounds of what a file may claim: far beyond any model, and small enough that products fit 64 bits.
constexpr uint64_t kMostLayers = 4096, kMostExperts = 65536, kMostHidden = 1 << 20, kMostTopK = 256;
constexpr uint64_t kMostText = 4096, kMostRows = 1 << 20, kMostPayload = 4ull << 30;
constexpr size_t kFlushBytes = 1 << 20;

// Bytes of one expert id in a layer.
uint64_t id_bytes(int experts) { return experts <= 256 ? 1 : 2; }

uint64_t layer_bytes(const TraceHeader& h, const TraceHeader::Layer& layer, uint64_t rows) {
  const uint64_t times = 16;
  if (layer.experts == 0) return times;
  const uint64_t ids = uint64_t(h.candidates + h.top_k) * id_bytes(layer.experts);
  const uint64_t hidden = h.hidden_states ? 2 * uint64_t(h.hidden) : 0;
  return times + rows * (ids + 2 * uint64_t(h.candidates) + hidden);
}

uint64_t step_bytes(const TraceHeader& h, uint64_t rows) {
  uint64_t bytes = 8 + 1 + 4 + rows * 16;
  for (const auto& layer : h.layers) bytes += layer_bytes(h, layer, rows);
  return bytes;
}

class Out {
 public:
  explicit Out(std::vector<std::byte>& to) : to_(to) {}
  template <class T>
  void number(T value) {
    const size_t at = to_.size();
    to_.resize(at + sizeof(T));
    std::memcpy(to_.data() + at, &value, sizeof(T));
  }
  void bytes(std::span<const std::byte> bytes) { to_.insert(to_.end(), bytes.begin(), bytes.end()); }
  void text(const std::string& text) {
    number(uint32_t(text.size()));
    bytes(std::as_bytes(std::span(text)));
  }
  void ids(std::span<const uint16_t> ids, int experts) {
    if (id_bytes(experts) == 2) return bytes(std::as_bytes(ids));
    for (const uint16_t id : ids) number(uint8_t(id));
  }

 private:
  std::vector<std::byte>& to_;
};

// A block is closed by filling in its length and adding the checksum of all before.
size_t open_block(std::vector<std::byte>& to, uint32_t kind) {
  const size_t begin = to.size();
  Out out(to);
  out.number(kind);
  out.number(uint64_t(0));
  return begin;
}

void close_block(std::vector<std::byte>& to, size_t begin) {
  const uint64_t length = to.size() - begin - kBlockHead;
  std::memcpy(to.data() + begin + 4, &length, sizeof(length));
  Out(to).number(uint64_t(XXH3_64bits(to.data() + begin, to.size() - begin)));
}

// The one list of what a header may say: the same for what is written and what is read. Empty: nothing is wrong.
std::string fault_of(const TraceHeader& h) {
  const auto range = [](const char* field, uint64_t low, uint64_t high, int64_t found) {
    return found < int64_t(low) || found > int64_t(high)
               ? fmt::format("{}: expected {} to {}, found {}", field, low, high, found)
               : std::string();
  };
  for (const std::string& fault :
       {range("layers", 1, kMostLayers, int64_t(h.layers.size())), range("hidden", 1, kMostHidden, h.hidden),
        range("top_k", 1, kMostTopK, h.top_k), range("candidates", uint64_t(h.top_k), 2 * kMostTopK, h.candidates),
        range("bytes of the model's name", 0, kMostText, int64_t(h.model.size())),
        range("bytes of the fingerprint", 0, kMostText, int64_t(h.fingerprint.size()))})
    if (!fault.empty()) return fault;
  for (size_t i = 0; i < h.layers.size(); ++i) {
    const auto& layer = h.layers[i];
    if (layer.experts == 0 && layer.slot_bytes == 0) continue;
    if (layer.experts < h.candidates || uint64_t(layer.experts) > kMostExperts)
      return fmt::format("experts of layer {}: expected {} to {}, found {}", i, h.candidates, kMostExperts,
                         layer.experts);
    if (layer.slot_bytes == 0 || layer.slot_bytes > kMostPayload)
      return fmt::format("slot bytes of layer {}: expected 1 to {}, found {}", i, kMostPayload, layer.slot_bytes);
  }
  return "";
}

// Ids of `width` a row: in range, and each only once in its row.
std::string fault_of_ids(const char* what, std::span<const uint16_t> ids, size_t width, int experts) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (int(ids[i]) >= experts)
      return fmt::format("{} {} of row {}: expected an expert below {}, found {}", what, i % width, i / width, experts,
                         ids[i]);
    for (size_t j = i - i % width; j < i; ++j)
      if (ids[j] == ids[i])
        return fmt::format("{} of row {}: expected distinct experts, found {} twice", what, i / width, ids[i]);
  }
  return "";
}

std::string fault_of(const TraceHeader& h, const TraceStep& step) {
  if (step.rows.empty() || step.rows.size() > kMostRows)
    return fmt::format("rows: expected 1 to {}, found {}", kMostRows, step.rows.size());
  if (step.phase > TracePhase::kMixed) return fmt::format("phase: expected 0 to 2, found {}", int(step.phase));
  if (step.layers.size() != h.layers.size())
    return fmt::format("layers: expected {}, found {}", h.layers.size(), step.layers.size());
  for (size_t i = 0; i < h.layers.size(); ++i) {
    const TraceLayer& layer = step.layers[i];
    const int experts = h.layers[i].experts;
    const size_t rows = experts == 0 ? 0 : step.rows.size();
    const auto size = [&](const char* what, size_t found, size_t expected) {
      return found == expected ? std::string() : fmt::format("{}: expected {}, found {}", what, expected, found);
    };
    for (const std::string& fault :
         {size("candidates", layer.candidates.size(), rows * size_t(h.candidates)),
          size("probabilities", layer.probabilities.size(), rows * size_t(h.candidates)),
          size("chosen experts", layer.chosen.size(), rows * size_t(h.top_k)),
          size("hidden states", layer.x.size(), h.hidden_states ? rows * size_t(h.hidden) : 0),
          fault_of_ids("candidate", layer.candidates, size_t(h.candidates), experts),
          fault_of_ids("choice", layer.chosen, size_t(h.top_k), experts)})
      if (!fault.empty()) return fmt::format("layer {}: {}", i, fault);
  }
  return "";
}

}  // namespace

TraceWriter::TraceWriter(const std::filesystem::path& path, TraceHeader header)
    : header_(std::move(header)), file_([&] {
        const std::string fault = fault_of(header_);
        EF_CHECK(fault.empty(), ConfigError, "{}: cannot record a trace: {}", path.string(), fault);
        return path;
      }()) {
  Out out(buffer_);
  out.bytes(std::as_bytes(std::span(kMagic)));
  out.number(kTraceVersion);
  const size_t begin = open_block(buffer_, kHeaderBlock);
  out.text(header_.model);
  out.text(header_.fingerprint);
  out.number(uint32_t(header_.hidden));
  out.number(uint32_t(header_.top_k));
  out.number(uint32_t(header_.candidates));
  out.number(uint32_t(header_.hidden_states));
  out.number(uint32_t(header_.layers.size()));
  for (const auto& layer : header_.layers) {
    out.number(uint32_t(layer.experts));
    out.number(layer.slot_bytes);
  }
  close_block(buffer_, begin);
}

void TraceWriter::flush() {
  file_.write(position_, buffer_);
  position_ += buffer_.size();
  buffer_.clear();
}

void TraceWriter::write(const TraceStep& step) {
  EF_CHECK(!closed_, ConfigError, "{}: the trace is closed", file_.path().string());
  std::string fault = fault_of(header_, step);
  if (fault.empty() && steps_ > 0 && step.step <= last_step_)
    fault = fmt::format("number: expected more than {}", last_step_);
  EF_CHECK(fault.empty(), ConfigError, "{}: step {}: {}", file_.path().string(), step.step, fault);
  Out out(buffer_);
  const size_t begin = open_block(buffer_, kStepBlock);
  out.number(step.step);
  out.number(uint8_t(step.phase));
  out.number(uint32_t(step.rows.size()));
  for (const TraceRow& row : step.rows) {
    out.number(row.request);
    out.number(row.token);
    out.number(row.position);
  }
  for (size_t i = 0; i < step.layers.size(); ++i) {
    const TraceLayer& layer = step.layers[i];
    const int experts = header_.layers[i].experts;
    out.number(layer.compute_ns);
    out.number(layer.stall_ns);
    out.ids(layer.candidates, experts);
    out.bytes(std::as_bytes(std::span(layer.probabilities)));
    out.ids(layer.chosen, experts);
    out.bytes(std::as_bytes(std::span(layer.x)));
  }
  close_block(buffer_, begin);
  ++steps_;
  rows_ += step.rows.size();
  last_step_ = step.step;
  if (buffer_.size() >= kFlushBytes) flush();
}

void TraceWriter::close() {
  if (closed_) return;
  const size_t begin = open_block(buffer_, kEndBlock);
  Out(buffer_).number(steps_);
  Out(buffer_).number(rows_);
  close_block(buffer_, begin);
  flush();
  file_.complete(position_);
  file_.publish();
  closed_ = true;
}

namespace {

// Takes a block's payload apart; whoever asks has compared its size with what it will take.
class In {
 public:
  In(const std::string& file, uint64_t offset, std::span<const std::byte> bytes)
      : file_(file), offset_(offset), bytes_(bytes) {}

  template <class T>
  T number(const char* field) {
    need(sizeof(T), field);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  /// A count that will be an int.
  int count(const char* field) {
    const auto value = number<uint32_t>(field);
    return int(std::min(value, uint32_t(std::numeric_limits<int32_t>::max())));
  }
  std::string text(const char* field) {
    const auto length = number<uint32_t>(field);
    need(length, field);
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }
  void ids(std::vector<uint16_t>& to, size_t count, int experts) {
    if (id_bytes(experts) == 2) return values(to, count);
    need(count, "expert ids");
    to.resize(count);
    for (size_t i = 0; i < count; ++i) to[i] = uint16_t(bytes_[at_ + i]);
    at_ += count;
  }
  void values(std::vector<uint16_t>& to, size_t count) {
    need(2 * count, "values");
    to.resize(count);
    if (count > 0) std::memcpy(to.data(), bytes_.data() + at_, 2 * count);
    at_ += 2 * count;
  }
  uint64_t left() const { return bytes_.size() - at_; }
  uint64_t offset() const { return offset_ + at_; }

 private:
  void need(uint64_t bytes, const char* field) const {
    EF_CHECK(bytes <= left(), ModelError, "{}: offset {}: {}: expected {} bytes, found {}", file_, offset(), field,
             bytes, left());
  }
  const std::string& file_;
  uint64_t offset_;
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

}  // namespace

TraceReader::TraceReader(const std::filesystem::path& path) : TraceReader(std::make_shared<FileSource>(path)) {}

TraceReader::TraceReader(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {
  const std::string& file = source_->name();
  EF_CHECK(source_->size() >= kFront, ModelError, "{}: offset 0: expected a routing trace, found {} bytes", file,
           source_->size());
  std::array<std::byte, kFront> front;
  source_->read(0, front);
  EF_CHECK(std::memcmp(front.data(), kMagic.data(), kMagic.size()) == 0, ModelError,
           "{}: offset 0: expected a routing trace (\"EFTRACE\"), found another kind of file", file);
  uint32_t version;
  std::memcpy(&version, front.data() + kMagic.size(), sizeof(version));
  EF_CHECK(version == kTraceVersion, ModelError, "{}: offset {}: trace version: expected {}, found {}", file,
           kMagic.size(), kTraceVersion, version);
  position_ = kFront;
  const Block block = read_block();
  EF_CHECK(block.kind == kHeaderBlock, ModelError, "{}: offset {}: expected the trace's header, found block {:#x}",
           file, block.offset, block.kind);
  parse_header(block);
}

TraceReader::Block TraceReader::read_block() {
  const std::string& file = source_->name();
  const uint64_t left = source_->size() - position_;
  EF_CHECK(left >= kBlockHead + kChecksum, ModelError,
           "{}: offset {}: expected a block or the trace's end, found {} bytes: the file is cut short", file, position_,
           left);
  std::array<std::byte, kBlockHead> head;
  source_->read(position_, head);
  Block block;
  block.offset = position_;
  uint64_t length;
  std::memcpy(&block.kind, head.data(), 4);
  std::memcpy(&length, head.data() + 4, 8);
  EF_CHECK(length <= kMostPayload && length <= left - kBlockHead - kChecksum, ModelError,
           "{}: offset {}: a block of {} bytes, found {}: the file is cut short or damaged", file, position_, length,
           left - kBlockHead - kChecksum);
  buffer_.resize(kBlockHead + length + kChecksum);
  source_->read(position_, buffer_);
  uint64_t expected;
  std::memcpy(&expected, buffer_.data() + kBlockHead + length, kChecksum);
  const uint64_t found = XXH3_64bits(buffer_.data(), kBlockHead + length);
  EF_CHECK(found == expected, ModelError,
           "{}: offset {}: checksum of a block of {} bytes: expected {:016x}, found {:016x}", file, position_, length,
           expected, found);
  position_ += buffer_.size();
  block.payload = std::span(buffer_).subspan(kBlockHead, length);
  return block;
}

void TraceReader::parse_header(const Block& block) {
  const std::string& file = source_->name();
  In in(file, block.offset + kBlockHead, block.payload);
  header_.model = in.text("model");
  header_.fingerprint = in.text("fingerprint");
  header_.hidden = in.count("hidden");
  header_.top_k = in.count("top_k");
  header_.candidates = in.count("candidates");
  const auto flags = in.number<uint32_t>("flags");
  EF_CHECK(flags <= 1, ModelError, "{}: offset {}: flags: expected 0 or 1, found {:#x}", file, in.offset() - 4, flags);
  header_.hidden_states = flags == 1;
  const auto layers = in.number<uint32_t>("layers");
  EF_CHECK(uint64_t(layers) * 12 == in.left(), ModelError, "{}: offset {}: {} layers: expected {} bytes, found {}",
           file, in.offset(), layers, uint64_t(layers) * 12, in.left());
  for (uint32_t i = 0; i < layers; ++i) {
    const int experts = in.count("experts");
    header_.layers.push_back({experts, in.number<uint64_t>("slot bytes")});
  }
  const std::string fault = fault_of(header_);
  EF_CHECK(fault.empty(), ModelError, "{}: offset {}: {}", file, block.offset, fault);
}

void TraceReader::parse_step(const Block& block, TraceStep& step) {
  const std::string& file = source_->name();
  In in(file, block.offset + kBlockHead, block.payload);
  step.step = in.number<uint64_t>("step");
  step.phase = TracePhase(in.number<uint8_t>("phase"));
  const auto rows = in.number<uint32_t>("rows");
  EF_CHECK(rows >= 1 && rows <= kMostRows, ModelError, "{}: offset {}: rows: expected 1 to {}, found {}", file,
           in.offset() - 4, kMostRows, rows);
  const uint64_t expected = step_bytes(header_, rows);
  EF_CHECK(expected == block.payload.size(), ModelError,
           "{}: offset {}: step {} of {} rows: expected {} bytes, found {}", file, block.offset, step.step, rows,
           expected, block.payload.size());
  EF_CHECK(steps_ == 0 || step.step > last_step_, ModelError,
           "{}: offset {}: step: expected a number above {}, found {}", file, block.offset, last_step_, step.step);
  step.rows.resize(rows);
  for (TraceRow& row : step.rows) {
    row.request = in.number<uint64_t>("request");
    row.token = in.number<TokenId>("token");
    row.position = in.number<int32_t>("position");
  }
  step.layers.resize(header_.layers.size());
  for (size_t i = 0; i < step.layers.size(); ++i) {
    TraceLayer& layer = step.layers[i];
    const int experts = header_.layers[i].experts;
    const size_t n = experts == 0 ? 0 : rows;
    layer.compute_ns = in.number<uint64_t>("compute time");
    layer.stall_ns = in.number<uint64_t>("stall time");
    in.ids(layer.candidates, n * size_t(header_.candidates), experts);
    in.values(layer.probabilities, n * size_t(header_.candidates));
    in.ids(layer.chosen, n * size_t(header_.top_k), experts);
    in.values(layer.x, header_.hidden_states ? n * size_t(header_.hidden) : 0);
  }
  const std::string fault = fault_of(header_, step);
  EF_CHECK(fault.empty(), ModelError, "{}: offset {}: step {}: {}", file, block.offset, step.step, fault);
  ++steps_;
  rows_ += rows;
  last_step_ = step.step;
}

void TraceReader::parse_end(const Block& block) {
  const std::string& file = source_->name();
  In in(file, block.offset + kBlockHead, block.payload);
  const auto steps = in.number<uint64_t>("steps");
  const auto rows = in.number<uint64_t>("rows");
  EF_CHECK(steps == steps_ && rows == rows_ && in.left() == 0, ModelError,
           "{}: offset {}: expected {} steps of {} rows, found {} of {}", file, block.offset, steps, rows, steps_,
           rows_);
  EF_CHECK(position_ == source_->size(), ModelError, "{}: offset {}: expected the file's end, found {} more bytes",
           file, position_, source_->size() - position_);
  ended_ = true;
}

bool TraceReader::next(TraceStep& step) {
  if (ended_) return false;
  const Block block = read_block();
  if (block.kind == kStepBlock) {
    parse_step(block, step);
    return true;
  }
  EF_CHECK(block.kind == kEndBlock, ModelError, "{}: offset {}: expected a step or the trace's end, found block {:#x}",
           source_->name(), block.offset, block.kind);
  parse_end(block);
  return false;
}

uint64_t Trace::rows() const {
  uint64_t rows = 0;
  for (const TraceStep& step : steps) rows += step.rows.size();
  return rows;
}

Trace read_trace(const std::filesystem::path& path, bool hidden_states) {
  TraceReader reader(path);
  Trace trace;
  TraceStep step;
  while (reader.next(step)) {
    if (!hidden_states)
      for (TraceLayer& layer : step.layers) layer.x = {};
    trace.steps.push_back(std::move(step));
    step = {};
  }
  trace.header = reader.header();
  trace.header.hidden_states &= hidden_states;
  return trace;
}

}  // namespace ef
