#include "expertflow/convert/quantize.h"

#include <algorithm>
#include <map>

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "expertflow/base/errors.h"
#include "expertflow/convert/quantize_rules.h"

namespace ef::cli {
namespace {

std::string type_names() {
  std::string out;
  for (const QuantType& type : quant_types())
    out +=
        fmt::format("\n  {}{} ({})", type.name, type.alias.empty() ? "" : fmt::format(", {}", type.alias), type.help);
  return out;
}

std::string_view name_of(Format f) { return format_info(f).name; }

void print_tensors(const QuantizeReport& report) {
  for (const QuantizedTensor& t : report.tensors)
    fmt::print("{:<40} {:>8} -> {:<8} {:>12} bytes  rms error {:.3e} ({:.3f} %)\n", t.name, name_of(t.from),
               name_of(t.to), t.bytes_out, t.error.rms(), 100 * t.error.relative());
}

/// One line a kind of change.
void print_summary(const QuantizeReport& report) {
  struct Group {
    int tensors = 0;
    uint64_t bytes_in = 0, bytes_out = 0;
    ConversionError error;
    double worst = -1;
    const QuantizedTensor* worst_tensor = nullptr;
  };
  std::map<std::pair<Format, Format>, Group> groups;
  for (const QuantizedTensor& t : report.tensors) {
    Group& g = groups[{t.from, t.to}];
    ++g.tensors;
    g.bytes_in += t.bytes_in, g.bytes_out += t.bytes_out;
    g.error.squared_error += t.error.squared_error, g.error.squared_sum += t.error.squared_sum;
    g.error.count += t.error.count;
    if (t.error.relative() > g.worst) g.worst = t.error.relative(), g.worst_tensor = &t;
  }
  for (const auto& [formats, g] : groups) {
    fmt::print("{} -> {}: {} tensors, {} to {}", name_of(formats.first), name_of(formats.second), g.tensors,
               human_bytes(g.bytes_in), human_bytes(g.bytes_out));
    if (g.error.squared_error > 0)
      fmt::print(", rms error {:.3e} ({:.3f} %), largest {:.3f} % in {}", g.error.rms(), 100 * g.error.relative(),
                 100 * g.worst, g.worst_tensor->name);
    fmt::print("\n");
  }
  for (const QuantizedTensor& t : report.tensors)
    if (t.fallback)
      fmt::print("fallback: {}: rows of {} are no multiple of {}'s {}: {}\n", t.name, t.shape.back(), name_of(t.wanted),
                 format_info(t.wanted).block_elements, name_of(t.to));
}

}  // namespace

void add_quantize(CLI::App& app, int& exit_code) {
  struct QuantizeCommand {
    std::string in, out, type, output_type, token_embedding_type, tokenizer_pre;
    int threads = 0;
    bool allow_requantize = false, force = false, tensors = false, quiet = false;
  };
  auto o = std::make_shared<QuantizeCommand>();
  CLI::App* command =
      app.add_subcommand("quantize", "A GGUF in a smaller format, from a Hugging Face folder or a GGUF");
  command->add_option("IN", o->in, "Hugging Face folder or GGUF file (any shard)")->required();
  command->add_option("OUT", o->out, "GGUF file to write")->required();
  Binder bind(*command);
  bind(o->type, {"--type", "one of" + type_names()});
  bind(o->output_type, {"--output-type", "type of the output matrix"});
  bind(o->token_embedding_type, {"--token-embedding-type", "type of the token embedding"});
  bind(o->allow_requantize, {"--allow-requantize", "also from formats that are quantised already"});
  bind(o->tokenizer_pre, {"--tokenizer-pre", "name of the pre-tokenizer (tokenizer.ggml.pre), if it is not found"});
  bind(o->force, {"--force", "replace an existing file"});
  bind(o->tensors, {"--tensors", "print every tensor's types, size and error"});
  bind(o->threads, {"-t,--threads", "threads; 0: all processors"});
  bind(o->quiet, {"-q,--quiet", "no progress on stderr"});
  command->callback([o, &exit_code] {
    QuantizeOptions options;
    options.in = o->in, options.out = o->out, options.type = o->type;
    options.output_type = o->output_type, options.token_embedding_type = o->token_embedding_type;
    options.allow_requantize = o->allow_requantize, options.tokenizer_pre = o->tokenizer_pre;
    check_threads(o->threads);
    options.force = o->force, options.threads = o->threads;
    EF_CHECK(!o->type.empty(), ConfigError, "--type: expected a type to quantise to, found none (see --help)");
    QuantizeReport report;
    {
      Progress progress("quantising", o->quiet);
      report = quantize_checkpoint(options, [&](uint64_t done, uint64_t total) { progress(done, total); });
    }
    for (const auto& note : report.notes) std::fputs(fmt::format("note: {}\n", note).c_str(), stderr);
    if (o->tensors) print_tensors(report);
    print_summary(report);
    fmt::print("{}: {} from {} ({:.1f} %)\n", o->out, human_bytes(report.bytes_out), human_bytes(report.bytes_in),
               report.bytes_in > 0 ? 100.0 * double(report.bytes_out) / double(report.bytes_in) : 0.0);
    exit_code = 0;
  });
}

}  // namespace ef::cli
