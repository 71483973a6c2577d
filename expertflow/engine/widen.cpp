#include "expertflow/engine/widen.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "expertflow/base/errors.h"
#include "expertflow/engine/widen_plan.h"
#include "expertflow/weights/writers.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxCopies = 1024;
constexpr int64_t kMaxWidth = 1 << 20;

void check_options(const WidenOptions& o) {
  for (const auto& [name, copies] : {std::pair{"a", o.hidden_copies}, std::pair{"b", o.expert_copies}}) {
    EF_CHECK(copies >= 1 && copies <= kMaxCopies, ConfigError, "widen: {}: expected 1 to {}, found {}", name,
             kMaxCopies, copies);
  }
  EF_CHECK(!fs::exists(o.out), ConfigError, "widen: {}: expected a path that does not exist yet", o.out.string());
}

uint64_t result_bytes(const TensorTiling& t) {
  int64_t elements = 1;
  for (int64_t d : t.shape) elements *= d;
  return row_bytes(t.format, elements);
}

/// Writes one tensor's tiles, reading the source in runs of rows.
class TilingWriter {
 public:
  TilingWriter(const TensorDirectory& directory, CheckpointWriter& writer, uint64_t buffer_bytes,
               std::function<void(uint64_t)> wrote)
      : directory_(directory), writer_(writer), buffer_bytes_(buffer_bytes), wrote_(std::move(wrote)) {}

  void write(const TensorTiling& t) {
    if (t.divisor > 1) {
      write_divided(t);
      return;
    }
    const int64_t group_rows = t.rows / t.row_axis.groups;
    for (int64_t first = 0; first < t.outer * t.rows; first += group_rows) {
      for (int copy = 0; copy < t.row_axis.copies; ++copy) {
        write_rows(t, first, group_rows, copy > 0 && t.row_axis.zero_copies);
      }
    }
  }

 private:
  void write_rows(const TensorTiling& t, int64_t first, int64_t count, bool zero) {
    const uint64_t row = t.row_bytes();
    const uint64_t wide_row = row * uint64_t(t.col_axis.copies);
    const int64_t run = std::max<int64_t>(1, int64_t(buffer_bytes_ / wide_row));
    for (int64_t r = first; r < first + count; r += run) {
      const int64_t n = std::min(run, first + count - r);
      wide_.assign(size_t(uint64_t(n) * wide_row), std::byte{0});
      if (!zero) {
        narrow_.resize(size_t(uint64_t(n) * row));
        directory_.read(t.tensor, uint64_t(r) * row, narrow_);
        for (int64_t i = 0; i < n; ++i)
          tile_row(t, narrow_.data() + uint64_t(i) * row, wide_.data() + uint64_t(i) * wide_row);
      }
      emit(wide_);
    }
  }

  /// `wide` holds zeros.
  static void tile_row(const TensorTiling& t, const std::byte* narrow, std::byte* wide) {
    const AxisTiling& axis = t.col_axis;
    const size_t group = size_t(t.row_bytes() / uint64_t(axis.groups));
    for (int g = 0; g < axis.groups; ++g) {
      for (int copy = 0; copy < axis.copies; ++copy) {
        if (copy == 0 || !axis.zero_copies) std::memcpy(wide, narrow + size_t(g) * group, group);
        wide += group;
      }
    }
  }

  void write_divided(const TensorTiling& t) {
    std::vector<float> values = directory_.read_f32(t.tensor);
    for (float& v : values) v /= float(t.divisor);
    wide_.resize(row_bytes(t.format, int64_t(values.size())));
    format_info(t.format).quantize(values.data(), wide_.data(), int64_t(values.size()));
    for (int copy = 0; copy < t.col_axis.copies; ++copy) emit(wide_);
  }

  void emit(std::span<const std::byte> bytes) {
    writer_.write(bytes);
    wrote_(bytes.size());
  }

  const TensorDirectory& directory_;
  CheckpointWriter& writer_;
  const uint64_t buffer_bytes_;
  const std::function<void(uint64_t)> wrote_;
  std::vector<std::byte> narrow_, wide_;
};

bool is_weight_file(const fs::path& file) {
  for (const char* ending : {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth",
                             ".gguf", ".h5", ".onnx", ".msgpack", ".partial"}) {
    if (file.string().ends_with(ending)) return true;
  }
  return false;
}

/// Tokenizer, chat template, generation config, licence: everything beside the weights and config.json.
void copy_side_files(const fs::path& from, const fs::path& to) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    if (!entry.is_regular_file() || is_weight_file(name) || name == "config.json") continue;
    std::error_code error;
    fs::copy_file(entry.path(), to / name, error);
    EF_CHECK(!error, DeviceError, "{}: cannot copy to {}: {}", entry.path().string(), to.string(), error.message());
  }
}

void write_config(const nlohmann::json& config, const fs::path& file) {
  std::ofstream out(file, std::ios::binary);
  out << config.dump(2) << '\n';
  out.close();
  EF_CHECK(out.good(), DeviceError, "{}: cannot write", file.string());
}

std::unique_ptr<CheckpointWriter> make_writer(const WidenOptions& options, const Checkpoint& header) {
  if (header.kind == Checkpoint::Kind::kGguf) return make_gguf_writer(options.out, header.gguf.metadata);
  return make_safetensors_writer(options.out, options.shard_bytes);
}

/// Tilings in the order of the source's tensors; what no role uses is dropped.
std::vector<TensorTiling> in_file_order(const TensorDirectory& directory,
                                        std::unordered_map<std::string, TensorTiling> plan,
                                        std::vector<std::string>& dropped) {
  std::vector<TensorTiling> ordered;
  for (const TensorInfo& t : directory.tensors()) {
    const auto it = plan.find(t.name);
    if (it == plan.end()) {
      dropped.push_back(t.name);
    } else {
      ordered.push_back(std::move(it->second));
    }
  }
  return ordered;
}

}  // namespace

WidenReport widen(const WidenOptions& options, const WidenProgress& progress) {
  check_options(options);
  const Checkpoint source = open_checkpoint(options.model);
  EF_CHECK(!source.packed, ConfigError, "widen: {}: expected a checkpoint, found a packed file: widen {} and pack that",
           options.model.string(), source.packed->source_name);
  const Architecture& arch = find_architecture(source);
  const Config config = read_config(arch, source);
  EF_CHECK(int64_t{config.hidden} * options.hidden_copies <= kMaxWidth &&
               int64_t{config.expert_ffn} * options.expert_copies <= kMaxWidth,
           ConfigError, "widen: {}: expected widths up to {}, found hidden {} x {} and experts {} x {}",
           options.model.string(), kMaxWidth, config.hidden, options.hidden_copies, config.expert_ffn,
           options.expert_copies);
  const Binding binding = bind(arch, config, source);
  const WidenedHeader header = widen_header(arch, source, config, options.hidden_copies, options.expert_copies);

  WidenReport report;
  report.hidden = header.config.hidden;
  report.expert_ffn = header.config.expert_ffn;
  const std::vector<TensorTiling> tilings =
      in_file_order(source.directory, plan_widening(config, source, binding, header.factors), report.dropped);

  const auto writer = make_writer(options, header.checkpoint);
  for (const TensorTiling& t : tilings) {
    writer->declare(t.tensor.name, t.format, t.shape);
    report.bytes_in += t.tensor.bytes;
    report.bytes_out += result_bytes(t);
  }
  uint64_t done = 0;
  TilingWriter tiles(source.directory, *writer, options.buffer_bytes, [&](uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, report.bytes_out);
  });
  for (const TensorTiling& t : tilings) tiles.write(t);
  writer->finish();
  if (source.kind == Checkpoint::Kind::kHuggingFace) {
    copy_side_files(source.path, options.out);
    write_config(header.checkpoint.config, options.out / "config.json");
  }
  // The result must open as a model: every tensor there, with the shapes that its own config asks for.
  const Checkpoint result = open_checkpoint(options.out);
  bind(arch, read_config(arch, result), result);
  return report;
}

}  // namespace ef
