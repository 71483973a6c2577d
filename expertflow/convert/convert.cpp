#include "expertflow/convert/convert.h"

#include <fstream>

#include "expertflow/base/errors.h"
#include "expertflow/convert/file_type.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

std::optional<Format> parse_type(const std::string& type) {
  if (type == "source") return std::nullopt;
  for (const Format f : {Format::kF32, Format::kF16, Format::kBF16})
    if (find_format(type) == &format_info(f)) return f;
  fail<ConfigError>("--type: expected source, f32, f16 or bf16, found \"{}\" (quantize writes block formats)", type);
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  EF_CHECK(out.good(), DeviceError, "{}: cannot write", file.string());
}

/// Removes a folder that we made, unless all went well.
class NewFolder {
 public:
  explicit NewFolder(fs::path path) : path_(std::move(path)), ours_(!fs::exists(path_)) {}
  ~NewFolder() {
    std::error_code ignored;
    if (ours_) fs::remove_all(path_, ignored);
  }
  void keep() { ours_ = false; }

 private:
  fs::path path_;
  bool ours_;
};

ConvertReport to_gguf(const ConvertOptions& options, const SourceModel& source, const ConvertProgress& progress) {
  const std::optional<Format> to = parse_type(options.type);
  GgufPlan plan = plan_gguf(source, options.tokenizer_pre);
  if (to)
    for (OutTensor& t : plan.tensors)
      if (!stays_f32_in_gguf(t.name, t.shape)) t.format = *to;
  set_file_type(plan);
  ConvertReport report;
  report.to_gguf = true;
  report.tensors = plan.tensors.size();
  for (const OutTensor& t : plan.tensors) report.bytes_out += planned_bytes(t);
  ThreadPool pool(options.threads);
  const auto writer = make_gguf_writer(options.out, plan.metadata);
  write_tensors(plan.tensors, *writer, pool, options.buffer_bytes, progress, nullptr);
  report.notes = std::move(plan.notes);
  return report;
}

ConvertReport to_folder(const ConvertOptions& options, const SourceModel& source, const ConvertProgress& progress) {
  HfPlan plan = plan_hf(source, parse_type(options.type), options.tokenizer_pre);
  ConvertReport report;
  report.tensors = plan.tensors.size();
  for (const OutTensor& t : plan.tensors) report.bytes_out += planned_bytes(t);
  ThreadPool pool(options.threads);
  NewFolder folder(options.out);
  const auto writer = make_safetensors_writer(options.out, options.shard_bytes);
  write_tensors(plan.tensors, *writer, pool, options.buffer_bytes, progress, nullptr);
  for (const auto& [name, text] : plan.files) write_text(options.out / name, text);
  if (!plan.generation_config.is_null())
    write_text(options.out / "generation_config.json", plan.generation_config.dump(2) + "\n");
  write_text(options.out / "config.json", plan.config.dump(2) + "\n");
  folder.keep();
  report.notes = std::move(plan.notes);
  return report;
}

}  // namespace

ConvertReport convert_checkpoint(const ConvertOptions& options, const ConvertProgress& progress) {
  parse_type(options.type);
  const SourceModel source = open_source(options.in);
  const bool from_folder = source.checkpoint.kind == Checkpoint::Kind::kHuggingFace;
  const bool file_wanted = options.out.extension() == ".gguf";
  EF_CHECK(from_folder || !file_wanted, ConfigError,
           "{}: expected a folder to convert a GGUF into, found the name of a GGUF file (quantize changes the types "
           "within a GGUF)",
           options.out.string());
  EF_CHECK(!from_folder || file_wanted, ConfigError,
           "{}: expected a name ending in .gguf to convert a Hugging Face folder into, found another",
           options.out.string());
  if (from_folder) {
    check_output_file(source.checkpoint, options.out, options.force);
  } else {
    check_output_folder(options.out);
  }
  ConvertReport report = from_folder ? to_gguf(options, source, progress) : to_folder(options, source, progress);
  report.bytes_in = source.checkpoint.directory.total_bytes();
  // The result must open as a model, with every tensor that its own header asks for.
  (void)open_source(options.out);
  return report;
}

}  // namespace ef
