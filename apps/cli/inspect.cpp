// inspect: what a checkpoint is, from its headers alone.
#include <map>
#include <nlohmann/json.hpp>

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/inspect_trace.h"
#include "apps/cli/options_cli11.h"
#include "apps/cli/outputs.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/memory_budget.h"
#include "expertflow/engine/model_files.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/model/kv_cache.h"
#include "expertflow/transfer/expert_reader.h"

namespace ef::cli {

namespace {

struct InspectCommand {
  CommonOptions common;
  int64_t ctx_size = -1;
  std::string budget, trace, heat_map;
  bool json = false, tensors = false;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(ctx_size,
          {"-c,--ctx-size", "tokens of context to size the KV cache for; 0: the model's, -1: that, but at most 4096"});
    visit(budget,
          {"--expert-memory,--expert-cache-size", "a budget in bytes (6GiB) or as a share (40%): say what fits"});
    visit(json, {"--json", "print JSON"});
    visit(tensors, {"--tensors", "list every tensor"});
    visit(heat_map, {"--heat-map", "of a trace: load per layer and expert as a picture, to this .svg or .png file"});
  }
};

using Json = nlohmann::ordered_json;

std::map<std::string, uint64_t> bytes_by_format(const ModelFiles& files) {
  std::map<std::string, uint64_t> formats;
  for (const TensorInfo& t : files.checkpoint.directory.tensors())
    formats[std::string(format_info(t.format).name)] += t.bytes;
  for (const LayerExperts& layer : files.store->layers())  // of packed files: elsewhere they are tensors
    for (const ExpertPart& part : layer.layout.parts)
      if (!layer.images.empty())
        formats[std::string(format_info(part.format).name)] += part.bytes * layer.images.size();
  return formats;
}

std::string file_kind(const Checkpoint& checkpoint) {
  const std::string kind = checkpoint.kind == Checkpoint::Kind::kGguf ? "GGUF" : "Hugging Face";
  return checkpoint.packed ? "packed " + kind : kind;
}

const char* score_name(RouterScore s) {
  switch (s) {
    case RouterScore::kSoftmax:
      return "softmax";
    case RouterScore::kSigmoid:
      return "sigmoid";
    case RouterScore::kSoftmaxAfterTopK:
      return "softmax after top-k";
    case RouterScore::kSparsemixer:
      return "sparsemixer";
  }
  return "";
}

std::string layout_text(const ExpertLayout& layout) {
  std::string text;
  static constexpr const char* kRoles[] = {"gate",        "up",        "down",    "gate scales", "up scales",
                                           "down scales", "gate bias", "up bias", "down bias"};
  for (const ExpertPart& part : layout.parts) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {} [{}, {}]", kRoles[int(part.role)], format_info(part.format).name, part.rows, part.cols);
  }
  return text;
}

// Budgets that people ask about, and the one that was asked for.
Json budgets(const ModelFiles& files, const std::string& asked, int64_t ctx_size) {
  Json rows = Json::array();
  const CacheGeometry geometry = geometry_of(*files.store, int(files.config.layers.size()));
  EngineOptions options;
  options.ctx_size = ctx_size;
  const BudgetFacts facts = budget_facts_of(files, plan_memory(files, options));
  const uint64_t total = facts.expert_bytes;
  const auto add = [&](const std::string& name, uint64_t bytes) {
    // Layers differ in slot size: the largest gives a number that fits whatever the routing asks for.
    const uint64_t slots =
        bytes >= total ? UINT64_MAX : geometry.pool_bytes(bytes) / std::max<uint64_t>(1, facts.largest_slot);
    int64_t experts = 0;
    for (const auto& layer : files.store->layers()) experts += int64_t(layer.count());
    const bool works = bytes >= facts.largest_slot;
    rows.push_back({{"budget", name},
                    {"bytes", bytes},
                    {"experts_that_fit", std::min<uint64_t>(slots, uint64_t(experts))},
                    {"of", experts},
                    {"works", works}});
  };
  for (int percent : {10, 25, 50, 100})
    add(fmt::format("{}%", percent), uint64_t(double(total) * double(percent) / 100));
  if (!asked.empty()) add(asked, resolve_budget(parse_budget(asked), facts, read_memory_info()).bytes);
  return rows;
}

Json describe(const ModelFiles& files, const InspectCommand& o) {
  const Config& c = files.config;
  KvOptions kv;
  kv.max_tokens = context_tokens(o.ctx_size, c);
  Json json;
  json["model"] = files.checkpoint.path.string();
  json["file_kind"] = file_kind(files.checkpoint);
  if (const auto& packed = files.checkpoint.packed)
    json["packed"] = {{"version", kPackedVersion},
                      {"layout", packed->layouts()},
                      {"block_bytes", kPackedBlock},
                      {"source", packed->source_name}};
  json["architecture"] = c.arch;
  json["layers"] = c.layers.size();
  json["moe_layers"] = c.sparse_layers();
  json["skipped_layers"] = c.skipped_layers;
  json["hidden"] = c.hidden;
  json["vocabulary"] = c.vocab;
  json["heads"] = c.heads;
  json["kv_heads"] = c.kv_heads;
  json["head_dim"] = c.head_dim;
  json["attention"] = c.latent ? "latent" : "grouped-query";
  json["context_length"] = c.context_length;
  json["experts"] = c.router.experts;
  json["experts_per_token"] = c.router.top_k;
  json["expert_width"] = c.expert_ffn;
  json["shared_width"] = c.shared_ffn;
  json["router"] = score_name(c.router.score);
  json["renormalised"] = c.router.renormalise;
  json["tokenizer"] = load_tokenizer(files.checkpoint).has_value();
  json["chat_template"] = !load_chat_templates(files.checkpoint).empty();
  json["file_bytes"] =
      files.checkpoint.directory.total_bytes() + (files.checkpoint.packed ? files.store->total_bytes() : 0);
  json["expert_bytes"] = files.store->total_bytes();
  json["other_weight_bytes"] = files.binding.resident_bytes;
  json["kv_bytes_at_context"] = KvCache::bytes_for(c, kv);
  uint64_t token_bytes = 0;
  for (const auto& layer : files.store->layers()) token_bytes += layer.layout.bytes * uint64_t(c.router.top_k);
  json["expert_bytes_per_token"] = token_bytes;
  json["slot_bytes"] = files.store->max_slot_bytes();
  json["formats"] = bytes_by_format(files);
  Json layouts = Json::array();
  const ExpertLayout* last = nullptr;
  for (const auto& layer : files.store->layers()) {
    if (last && *last == layer.layout) continue;
    last = &layer.layout;
    layouts.push_back(
        {{"from_layer", layer.layer}, {"slot_bytes", layer.layout.bytes}, {"parts", layout_text(layer.layout)}});
  }
  json["expert_layouts"] = layouts;
  json["budgets"] = budgets(files, o.budget, o.ctx_size);
  if (o.tensors)
    for (const TensorInfo& t : files.checkpoint.directory.tensors())
      json["tensors"].push_back(
          {{"name", t.name}, {"format", format_info(t.format).name}, {"shape", t.shape}, {"bytes", t.bytes}});
  return json;
}

void print_text(const Json& j, const ModelFiles& files) {
  fmt::print("{} ({}, {})\n", j["model"].get<std::string>(), j["file_kind"].get<std::string>(),
             human_bytes(j["file_bytes"]));
  if (j.contains("packed"))
    fmt::print("packed           from {}: each expert one checksummed block of whole {} bytes, layout {}\n",
               j["packed"]["source"].get<std::string>(), j["packed"]["block_bytes"].get<uint64_t>(),
               j["packed"]["layout"].get<std::string>());
  fmt::print("architecture     {}: {} layers ({} MoE{}), hidden {}, vocabulary {}, context {}\n",
             j["architecture"].get<std::string>(), j["layers"].get<int>(), j["moe_layers"].get<int>(),
             files.config.skipped_layers
                 ? fmt::format(", {} multi-token-prediction skipped", files.config.skipped_layers)
                 : "",
             j["hidden"].get<int>(), j["vocabulary"].get<int>(), j["context_length"].get<int>());
  fmt::print("attention        {}, {} heads, {} key/value heads of {}\n", j["attention"].get<std::string>(),
             j["heads"].get<int>(), j["kv_heads"].get<int>(), j["head_dim"].get<int>());
  fmt::print("experts          {} a layer, top-{}, width {}, shared width {}; router {}{}\n", j["experts"].get<int>(),
             j["experts_per_token"].get<int>(), j["expert_width"].get<int>(), j["shared_width"].get<int>(),
             j["router"].get<std::string>(), j["renormalised"].get<bool>() ? ", renormalised" : "");
  fmt::print("text             tokenizer {}, chat template {}\n", j["tokenizer"].get<bool>() ? "yes" : "no",
             j["chat_template"].get<bool>() ? "yes" : "no");
  fmt::print("bytes            experts {}, other weights {}, experts of one token {}, KV cache {}\n",
             human_bytes(j["expert_bytes"]), human_bytes(j["other_weight_bytes"]),
             human_bytes(j["expert_bytes_per_token"]), human_bytes(j["kv_bytes_at_context"]));
  for (const auto& [format, bytes] : j["formats"].items())
    fmt::print("format           {:<7} {}\n", format, human_bytes(bytes));
  for (const auto& l : j["expert_layouts"])
    fmt::print("slot             from layer {}: {}: {}\n", l["from_layer"].get<int>(), human_bytes(l["slot_bytes"]),
               l["parts"].get<std::string>());
  for (const auto& b : j["budgets"])
    fmt::print("budget           {:<8} {:>10}: at least {} of {} experts{}\n", b["budget"].get<std::string>(),
               human_bytes(b["bytes"]), b["experts_that_fit"].get<uint64_t>(), b["of"].get<int64_t>(),
               b["works"].get<bool>() ? "" : ", too small for one slot");
}

int run_inspect(const InspectCommand& o) {
  if (!o.trace.empty()) {
    EF_CHECK(o.common.model.empty(), ConfigError, "--model: has no effect with a trace");
    EF_CHECK(!o.tensors, ConfigError, "--tensors: has no effect with a trace");
    EF_CHECK(o.budget.empty(), ConfigError, "--expert-memory: has no effect with a trace");
    EF_CHECK(o.ctx_size == InspectCommand().ctx_size, ConfigError, "--ctx-size: has no effect with a trace");
    return inspect_trace(o.trace, o.json, o.heat_map);
  }
  o.common.check();
  EF_CHECK(o.heat_map.empty(), ConfigError, "--heat-map: has an effect only with a trace (inspect TRACE)");
  const auto files = open_model(o.common.model);
  const Json json = describe(*files, o);
  if (o.json) {
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  print_text(json, *files);
  if (o.tensors)
    for (const TensorInfo& t : files->checkpoint.directory.tensors())
      fmt::print("tensor           {} {} {} {}\n", t.name, format_info(t.format).name, t.shape_text(),
                 human_bytes(t.bytes));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectCommand>();
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Architecture, experts, sizes, formats, and what fits a budget; or how a recorded run used its experts");
  command->add_option("TRACE", options->trace, "a recorded trace, instead of a model");
  bind_options(*command, options->common);
  bind_options(*command, *options);
  command->callback([options, &exit_code] {
    check_outputs({{"--heat-map", options->heat_map}}, {{"TRACE", options->trace}});
    exit_code = run_inspect(*options);
  });
}

}  // namespace ef::cli
