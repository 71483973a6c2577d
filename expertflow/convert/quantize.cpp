#include "expertflow/convert/quantize.h"

#include "expertflow/base/errors.h"
#include "expertflow/convert/families.h"
#include "expertflow/convert/quantize_rules.h"

namespace ef {
namespace {

bool is_blocks(Format f) { return format_info(f).block_elements > 1; }

/// A GGUF's tensors as they are, in file order.
GgufPlan copy_plan(const SourceModel& source, const std::string& tokenizer_pre) {
  GgufPlan plan;
  plan.metadata = source.checkpoint.gguf.metadata;
  if (!tokenizer_pre.empty()) set_text(plan.metadata, "tokenizer.ggml.pre", tokenizer_pre);
  set_integer(plan.metadata, "general.quantization_version", 2);
  for (const TensorInfo& t : source.checkpoint.directory.tensors())
    plan.tensors.push_back({t.name, t.shape, tensor_rows(source.checkpoint.directory, t), t.format});
  return plan;
}

QuantRules make_rules(const QuantizeOptions& options, const SourceModel& source, const GgufPlan& plan) {
  QuantRules rules;
  rules.type = &find_quant_type("--type", options.type);
  if (!options.output_type.empty()) rules.output = find_plain_type("--output-type", options.output_type);
  if (!options.token_embedding_type.empty())
    rules.token_embedding = find_plain_type("--token-embedding-type", options.token_embedding_type);
  rules.layers = int(source.config.layers.size());
  rules.experts = source.config.router.experts;
  rules.tied = true;
  for (const OutTensor& t : plan.tensors) rules.tied &= t.name != "output.weight";
  return rules;
}

/// Sets every tensor's format; what is known before any number is read.
std::vector<QuantizedTensor> choose_formats(const QuantizeOptions& options, const QuantRules& rules, GgufPlan& plan) {
  std::vector<QuantizedTensor> report;
  for (OutTensor& t : plan.tensors) {
    QuantizedTensor entry;
    entry.name = t.name, entry.shape = t.shape, entry.from = t.rows->format();
    if (const auto choice = rules.choose(t.name, t.shape)) {
      entry.fallback = choice->fallback && choice->format != entry.from;
      entry.wanted = choice->wanted;
      t.format = choice->format;
    }
    EF_CHECK(t.format == entry.from || !is_blocks(entry.from) || options.allow_requantize, ConfigError,
             "{}: tensor {} is {} already: quantising it again as {} loses more than quantising the original would; "
             "give --allow-requantize to do so all the same",
             options.in.string(), t.name, format_info(entry.from).name, format_info(t.format).name);
    EF_CHECK(t.format == entry.from || has_arithmetic(entry.from), ModelError,
             "{}: tensor {}: expected a weight format, found {}", options.in.string(), t.name,
             format_info(entry.from).name);
    entry.to = t.format;
    entry.bytes_in = uint64_t(t.rows->rows()) * t.rows->row_bytes();
    entry.bytes_out = planned_bytes(t);
    report.push_back(std::move(entry));
  }
  return report;
}

}  // namespace

QuantizeReport quantize_checkpoint(const QuantizeOptions& options, const ConvertProgress& progress) {
  const QuantType& type = find_quant_type("--type", options.type);
  const SourceModel source = open_source(options.in);
  check_output_file(source.checkpoint, options.out, options.force);
  const bool gguf = source.checkpoint.kind == Checkpoint::Kind::kGguf;
  GgufPlan plan = gguf ? copy_plan(source, options.tokenizer_pre) : plan_gguf(source, options.tokenizer_pre);
  QuantizeReport report;
  report.tensors = choose_formats(options, make_rules(options, source, plan), plan);
  set_integer(plan.metadata, "general.file_type", type.file_type);
  report.notes = std::move(plan.notes);

  std::vector<ConversionError> errors;
  {
    ThreadPool pool(options.threads);
    const auto writer = make_gguf_writer(options.out, plan.metadata);
    write_tensors(plan.tensors, *writer, pool, options.buffer_bytes, progress, &errors);
  }
  report.bytes_in = source.checkpoint.directory.total_bytes();
  for (size_t i = 0; i < report.tensors.size(); ++i) {
    report.tensors[i].error = errors[i];
    report.bytes_out += report.tensors[i].bytes_out;
  }
  (void)open_source(options.out);
  return report;
}

}  // namespace ef
