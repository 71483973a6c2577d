#include "expertflow/engine/widen.h"

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"

namespace ef::cli {

void add_widen(CLI::App& app, int& exit_code) {
  struct WidenCommand {
    WidenOptions options;
    bool quiet = false;
  };
  auto o = std::make_shared<WidenCommand>();
  CLI::App* command = app.add_subcommand("widen", "A larger checkpoint with the same tokens and the same routing");
  command->add_option("MODEL", o->options.model, "Hugging Face folder or GGUF file")->required();
  command->add_option("OUT", o->options.out, "folder or .gguf file to write, of the same kind")->required();
  command
      ->add_option("a", o->options.hidden_copies,
                   "how often hidden features are tiled (a power of two keeps BF16 exact)")
      ->required();
  command->add_option("b", o->options.expert_copies, "how often the neurons of routed experts are tiled")->required();
  Binder bind(*command);
  bind(o->quiet, {"-q,--quiet", "no progress on stderr"});
  command->callback([o, &exit_code] {
    WidenReport report;
    {
      Progress progress("widening", o->quiet);
      report = widen(o->options, [&](uint64_t done, uint64_t total) { progress(done, total); });
    }
    fmt::print("{}: hidden {}, expert width {}, {} from {}\n", o->options.out.string(), report.hidden,
               report.expert_ffn, human_bytes(report.bytes_out), human_bytes(report.bytes_in));
    for (const auto& name : report.dropped) std::fputs(fmt::format("not carried over: {}\n", name).c_str(), stderr);
    exit_code = 0;
  });
}

}  // namespace ef::cli
