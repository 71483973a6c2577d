#include "expertflow/convert/convert.h"

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"

namespace ef::cli {

void add_convert(CLI::App& app, int& exit_code) {
  struct ConvertCommand {
    std::string in, out, type = "source", tokenizer_pre;
    int threads = 0;
    bool force = false, quiet = false;
  };
  auto o = std::make_shared<ConvertCommand>();
  CLI::App* command = app.add_subcommand("convert", "A Hugging Face folder as GGUF, or a GGUF as Hugging Face folder");
  command->add_option("IN", o->in, "Hugging Face folder or GGUF file (any shard)")->required();
  command->add_option("OUT", o->out, "a .gguf file to write for a folder, a folder for a GGUF")->required();
  Binder bind(*command);
  bind(o->type, {"--type", "numbers of the matrices: source (each tensor's own), f32, f16, bf16"});
  bind(o->tokenizer_pre, {"--tokenizer-pre", "name of the pre-tokenizer (tokenizer.ggml.pre), if it is not found"});
  bind(o->force, {"--force", "replace an existing file"});
  bind(o->threads, {"-t,--threads", "threads; 0: all processors"});
  bind(o->quiet, {"-q,--quiet", "no progress on stderr"});
  command->callback([o, &exit_code] {
    ConvertOptions options;
    options.in = o->in, options.out = o->out;
    options.type = o->type, options.tokenizer_pre = o->tokenizer_pre;
    check_threads(o->threads);
    options.force = o->force, options.threads = o->threads;
    ConvertReport report;
    {
      Progress progress("converting", o->quiet);
      report = convert_checkpoint(options, [&](uint64_t done, uint64_t total) { progress(done, total); });
    }
    fmt::print("{}: {}, {} tensors, {} from {}\n", o->out, report.to_gguf ? "GGUF" : "Hugging Face folder",
               report.tensors, human_bytes(report.bytes_out), human_bytes(report.bytes_in));
    for (const auto& note : report.notes) std::fputs(fmt::format("note: {}\n", note).c_str(), stderr);
    exit_code = 0;
  });
}

}  // namespace ef::cli
