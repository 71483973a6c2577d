// The one table of architectures: to add one, write arch_<name>.cpp and add its row here.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "expertflow/base/errors.h"
#include "expertflow/model/arch.h"

namespace ef {

Architecture mixtral();
Architecture qwen2_moe();
Architecture qwen3_moe();
Architecture olmoe();
Architecture deepseek_v2();
Architecture deepseek_v3();
Architecture gpt_oss();
Architecture phimoe();
Architecture granitemoe();
Architecture glm4_moe();

std::span<const Architecture> architectures() {
  static const Architecture kTable[] = {
      mixtral(),     qwen2_moe(), qwen3_moe(), olmoe(),      deepseek_v2(),
      deepseek_v3(), gpt_oss(),   phimoe(),    granitemoe(), glm4_moe(),
  };
  return kTable;
}

namespace {

bool contains(std::span<const std::string_view> list, std::string_view name) {
  for (std::string_view item : list)
    if (item == name) return true;
  return false;
}

std::string known(bool gguf) {
  std::string out;
  for (const Architecture& arch : architectures())
    for (std::string_view name : gguf ? arch.gguf_archs : arch.hf_types) {
      std::string item(name);
      if (gguf && arch.accepts_gguf && out.find(item) != std::string::npos) continue;
      out += (out.empty() ? "" : ", ") + item;
    }
  return out;
}

const Architecture& find_hf(const Checkpoint& checkpoint) {
  std::string file = (checkpoint.path / "config.json").string();
  const nlohmann::json& config = checkpoint.config;
  EF_CHECK(config.is_object(), ModelError, "{}: expected a JSON object", file);
  auto it = config.find("model_type");
  EF_CHECK(
      it != config.end() && it->is_string(), ModelError, "{}: model_type: expected a string, found {} (known: {})",
      file,
      it == config.end() ? "nothing" : it->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 60),
      known(false));
  std::string type = it->get<std::string>();
  for (const Architecture& arch : architectures())
    if (contains(arch.hf_types, type)) return arch;
  fail<ModelError>("{}: model_type: unknown value \"{}\" (known: {})", file, type, known(false));
}

const Architecture& find_gguf(const Checkpoint& checkpoint) {
  const GgufMetadata& metadata = checkpoint.gguf.metadata;
  std::string name = metadata.str("general.architecture");
  bool named = false;
  for (const Architecture& arch : architectures()) {
    if (!contains(arch.gguf_archs, name)) continue;
    named = true;
    if (!arch.accepts_gguf || arch.accepts_gguf(metadata, checkpoint.directory)) return arch;
  }
  EF_CHECK(!named, ModelError,
           "{}: general.architecture \"{}\" without {}.expert_count is a dense model: expected a Mixture-of-Experts "
           "model (known: {})",
           metadata.file, name, name, known(true));
  fail<ModelError>("{}: general.architecture: unknown value \"{}\" (known: {})", metadata.file, name, known(true));
}

}  // namespace

const Architecture& find_architecture(const Checkpoint& checkpoint) {
  return checkpoint.kind == Checkpoint::Kind::kGguf ? find_gguf(checkpoint) : find_hf(checkpoint);
}

namespace {

// Multi-token-prediction layers follow the decoder's in the file. Checkpoints derived from DeepSeek-V3 and GLM-4.5 may
// lack the key that counts them and still hold their tensors.
void count_predict_layers(Config& config, const Architecture& arch, const TensorDirectory& directory) {
  if (config.skipped_layers > 0 || (arch.name != "deepseek_v3" && arch.name != "glm4_moe")) return;
  const auto holds = [&](size_t layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    return std::any_of(directory.tensors().begin(), directory.tensors().end(),
                       [&](const TensorInfo& t) { return t.name.starts_with(prefix); });
  };
  while (holds(config.layers.size() + size_t(config.skipped_layers))) ++config.skipped_layers;
  if (config.skipped_layers > 0)
    config.notes.push_back(fmt::format(
        "num_nextn_predict_layers is absent: {} layers after the decoder's {} are skipped as multi-token prediction",
        config.skipped_layers, config.layers.size()));
}

}  // namespace

Config read_config(const Architecture& arch, const Checkpoint& checkpoint) {
  if (checkpoint.kind == Checkpoint::Kind::kGguf) {
    Config out = arch.from_gguf(checkpoint.gguf.metadata, checkpoint.directory);
    if (out.router.score == RouterScore::kSigmoid && !out.selection_bias)
      out.notes.push_back("no exp_probs_b tensor: experts are selected by their scores alone");
    validate(out, checkpoint.gguf.metadata.file);
    return out;
  }
  try {
    Config out = arch.from_hf(checkpoint.config, checkpoint.generation_config);
    count_predict_layers(out, arch, checkpoint.directory);
    validate(out, "config.json");
    return out;
  } catch (const ModelError& error) {
    // Parsers know the file's name, the checkpoint knows its folder.
    fail<ModelError>("{}", (checkpoint.path / error.what()).string());
  }
}

}  // namespace ef
