// pack: a checkpoint as one file whose experts are read straight into their slots.
#include "expertflow/engine/pack.h"

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"

namespace ef::cli {

void add_pack(CLI::App& app, int& exit_code) {
  struct PackCommand {
    PackOptions options;
    bool quiet = false;
  };
  auto o = std::make_shared<PackCommand>();
  CLI::App* command =
      app.add_subcommand("pack", "One file in which each expert is a single aligned, checksummed block");
  command->add_option("MODEL", o->options.model, "Hugging Face folder or GGUF file")->required();
  command->add_option("-o,--output", o->options.out, "the file to write")
      ->envname(option_environment_name("-o,--output"))
      ->required();
  Binder bind(*command);
  bind(o->options.layout,
       {"--layout", "how matrices lie: rows, tiles16, or auto (as this machine's kernels want them)"});
  bind(o->options.force, {"--force", "replace the file if it exists"});
  bind(o->quiet, {"-q,--quiet", "no progress on stderr"});
  command->callback([o, &exit_code] {
    PackReport report;
    {
      Progress progress("packing", o->quiet);
      report = pack(o->options, [&](uint64_t done, uint64_t total) { progress(done, total); });
    }
    fmt::print("{}: {} experts, {} from {}\n", o->options.out.string(), report.experts, human_bytes(report.bytes_out),
               human_bytes(report.bytes_in));
    for (const auto& name : report.dropped) std::fputs(fmt::format("not carried over: {}\n", name).c_str(), stderr);
    exit_code = 0;
  });
}

}  // namespace ef::cli
