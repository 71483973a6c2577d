#include "expertflow/engine/text_model.h"

#include "expertflow/base/errors.h"

namespace ef {

namespace {

std::optional<int64_t> optional_integer(const GgufMetadata& m, const char* key) {
  return m.contains(key) ? std::optional<int64_t>(m.integer(key)) : std::nullopt;
}
std::optional<bool> optional_boolean(const GgufMetadata& m, const char* key) {
  return m.contains(key) ? std::optional<bool>(m.boolean(key)) : std::nullopt;
}

nlohmann::json json_file(const SideFiles& files, const char* name) {
  const auto text = files.read(name);
  if (!text) return nullptr;
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  EF_CHECK(!json.is_discarded(), ModelError, "{}: expected JSON, found something else", files.where(name));
  return json;
}

}  // namespace

GgufVocab gguf_vocab(const GgufMetadata& m) {
  GgufVocab v;
  v.file = m.file;
  v.model = m.str_or("tokenizer.ggml.model", "");
  if (!has_tokenizer(v)) return v;
  v.pre = m.str_or("tokenizer.ggml.pre", "");
  v.tokens = m.strings("tokenizer.ggml.tokens");
  if (m.contains("tokenizer.ggml.scores"))
    for (double s : m.numbers("tokenizer.ggml.scores")) v.scores.push_back(float(s));
  if (m.contains("tokenizer.ggml.token_type")) v.token_types = m.integers("tokenizer.ggml.token_type");
  if (m.contains("tokenizer.ggml.merges")) v.merges = m.strings("tokenizer.ggml.merges");
  v.bos = optional_integer(m, "tokenizer.ggml.bos_token_id");
  v.eos = optional_integer(m, "tokenizer.ggml.eos_token_id");
  v.eot = optional_integer(m, "tokenizer.ggml.eot_token_id");
  v.eom = optional_integer(m, "tokenizer.ggml.eom_token_id");
  v.unk = optional_integer(m, "tokenizer.ggml.unknown_token_id");
  v.pad = optional_integer(m, "tokenizer.ggml.padding_token_id");
  v.add_bos = optional_boolean(m, "tokenizer.ggml.add_bos_token");
  v.add_eos = optional_boolean(m, "tokenizer.ggml.add_eos_token");
  v.add_space_prefix = optional_boolean(m, "tokenizer.ggml.add_space_prefix");
  v.remove_extra_whitespaces = optional_boolean(m, "tokenizer.ggml.remove_extra_whitespaces");
  return v;
}

std::optional<Tokenizer> load_tokenizer(const Checkpoint& checkpoint, const std::string& pre) {
  if (checkpoint.kind == Checkpoint::Kind::kGguf) {
    GgufVocab vocab = gguf_vocab(checkpoint.gguf.metadata);
    if (!has_tokenizer(vocab)) return std::nullopt;
    if (!pre.empty()) vocab.pre = pre;
    return load_gguf_tokenizer(vocab);
  }
  const auto files = checkpoint.side_files();
  if (!files->holds("tokenizer.json") && !files->holds("tokenizer.model")) return std::nullopt;
  return load_tokenizer_files(*files);
}

ChatTemplates load_chat_templates(const Checkpoint& checkpoint) {
  if (checkpoint.kind == Checkpoint::Kind::kGguf) {
    const GgufMetadata& m = checkpoint.gguf.metadata;
    ChatTemplates templates;
    if (m.contains("tokenizer.chat_template")) templates.add("default", m.str("tokenizer.chat_template"));
    const std::string prefix = "tokenizer.chat_template.";
    for (const auto& [key, value] : m.values)
      if (key.starts_with(prefix)) templates.add(key.substr(prefix.size()), m.str(key));
    return templates;
  }
  const auto files = checkpoint.side_files();
  const std::optional<std::string> jinja = files->read("chat_template.jinja");
  const nlohmann::json config = json_file(*files, "tokenizer_config.json");
  return ChatTemplates::from_config(
      config.is_object() && config.contains("chat_template") ? config["chat_template"] : nlohmann::json(), jinja);
}

std::map<std::string, std::string> special_token_texts(const Tokenizer& tokenizer) {
  std::map<std::string, std::string> texts;
  const auto add = [&](const char* name, std::optional<TokenId> id) {
    if (id) texts[name] = tokenizer.token_text(*id);
  };
  add("bos_token", tokenizer.bos());
  add("eos_token", tokenizer.eos());
  add("unk_token", tokenizer.unk());
  add("pad_token", tokenizer.pad());
  return texts;
}

}  // namespace ef
