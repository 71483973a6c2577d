// tokenizer.json of Hugging Face's `tokenizers` and the files beside it.
#include <charconv>
#include <utility>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/text/tokenizer.h"
#include "expertflow/text/tokenizer_core.h"
#include "expertflow/text/tokenizer_json_sax.h"

namespace ef {
namespace {

using fields::Node;
using nlohmann::json;

void refuse_text(const Node& model, const char* key) {
  const Node value = fields::member(model, key);
  if (!value.value.is_null() && value.value != "") fields::wrong(value, "nothing (not supported)");
}

void load_vocabulary(TokenizerParts& parts, TokenizerJson& file, size_t limit, std::string_view name) {
  EF_CHECK(file.has_vocab, ModelError, "{}: model.vocab: expected an object of tokens and ids, found {}", name,
           fields::describe(fields::member({file.rest["model"], ""}, "vocab").value));
  EF_CHECK(!file.vocab.empty(), ModelError, "{}: model.vocab: expected tokens, found none", name);
  const std::string where = fmt::format("{}: model.vocab", name);
  for (auto& [text, id] : file.vocab) parts.vocabulary->add(std::move(text), id, limit, where);
  file.vocab = {};
}

void load_bpe(TokenizerParts& parts, const Node& model, TokenizerJson& file, std::string_view name) {
  refuse_text(model, "continuing_subword_prefix");
  refuse_text(model, "end_of_word_suffix");
  EF_CHECK(file.has_merges, ModelError, "{}: model.merges: expected an array, found {}", name,
           fields::describe(fields::member(model, "merges").value));
  BpeOptions options;
  options.fuse_unk = fields::boolean_or(model, "fuse_unk", false);
  options.byte_fallback = fields::boolean_or(model, "byte_fallback", false);
  options.ignore_merges = fields::boolean_or(model, "ignore_merges", false);
  const std::string unk = fields::string_or(model, "unk_token", "");
  if (!unk.empty()) {
    options.unk = parts.vocabulary->find(unk);
    if (!options.unk) fields::wrong(fields::member(model, "unk_token"), "a token of model.vocab");
    parts.unk = options.unk;
  }
  parts.model =
      std::make_unique<BpeModel>(*parts.vocabulary, options, file.merges, fmt::format("{}: model.merges", name));
}

AddedToken read_added_token(const Node& node) {
  AddedToken token;
  token.content = fields::required_string(node, "content");
  token.special = fields::boolean_or(node, "special", false);
  token.normalized = fields::boolean_or(node, "normalized", !token.special);
  token.lstrip = fields::boolean_or(node, "lstrip", false);
  token.rstrip = fields::boolean_or(node, "rstrip", false);
  token.single_word = fields::boolean_or(node, "single_word", false);
  return token;
}

void load_added_tokens(TokenizerParts& parts, const Node& list, size_t limit) {
  if (list.value.is_null()) return;
  for (size_t i = 0; i < fields::array_size(list); ++i) {
    const Node node = fields::element(list, i);
    AddedToken token = read_added_token(node);
    token.id = fields::token_id(fields::member(node, "id"));
    add_added_token(parts, std::move(token), limit, node.where);
  }
}

// TemplateProcessing's "single": special tokens before and after the sequence A.
void load_template(TokenizerParts& parts, const Node& node) {
  const Node single = fields::member(node, "single");
  const Node special = fields::member(node, "special_tokens");
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool seen = false;
  for (size_t i = 0; i < fields::array_size(single); ++i) {
    const Node item = fields::element(single, i);
    const Node sequence = fields::member(item, "Sequence");
    const Node token = fields::member(item, "SpecialToken");
    if (sequence.value.is_null() == token.value.is_null()) fields::wrong(item, "one of Sequence and SpecialToken");
    if (token.value.is_null()) {
      if (seen || fields::required_string(sequence, "id") != "A") fields::wrong(sequence, "the sequence A, once");
      seen = true;
      continue;
    }
    const std::string name = fields::required_string(token, "id");
    const Node ids = fields::member(fields::member(special, name.c_str()), "ids");
    for (size_t k = 0; k < fields::array_size(ids); ++k) {
      const Node element = fields::element(ids, k);
      const TokenId id = fields::token_id(element);
      if (!parts.vocabulary->contains(id)) fields::wrong(element, "an id of the vocabulary");
      (seen ? after : before).push_back(id);
    }
  }
  if (!seen) fields::wrong(single, "a template with the sequence A");
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
}

void load_post_processor(TokenizerParts& parts, const Node& node) {
  if (node.value.is_null()) return;
  const std::string type = fields::type_of(node);
  if (type == "ByteLevel") return;  // touches offsets alone
  if (type == "TemplateProcessing") return load_template(parts, node);
  if (type == "Sequence") {
    const Node list = fields::member(node, "processors");
    for (size_t i = 0; i < fields::array_size(list); ++i) load_post_processor(parts, fields::element(list, i));
    return;
  }
  fields::unknown_type(node, "post_processor", "TemplateProcessing, ByteLevel, Sequence");
}

// "bos_token": "<s>" or {"content": "<s>", ...}.
std::optional<TokenId> configured_token(const TokenizerParts& parts, const Node& config, const char* key) {
  const Node node = fields::member(config, key);
  if (node.value.is_null()) return std::nullopt;
  const std::string text = node.value.is_object() ? fields::required_string(node, "content") : fields::string_of(node);
  return parts.vocabulary->find(text);
}

json read_json_file(const SideFiles& files, const char* name) {
  const auto text = files.read(name);
  if (!text) return nullptr;
  try {
    return json::parse(*text);
  } catch (const json::exception& e) {
    fail<ModelError>("{}: expected json, found an error: {}", files.where(name), e.what());
  }
}

}  // namespace

void add_added_token(TokenizerParts& parts, AddedToken token, size_t limit, const std::string& where) {
  EF_CHECK(!token.content.empty(), ModelError, "{}: content: expected a text, found \"\"", where);
  const auto known = parts.vocabulary->find(token.content);
  EF_CHECK(!known || *known == token.id, ModelError, "{}: token '{}': expected id {}, as in the vocabulary, found {}",
           where, token.content, known.value_or(-1), token.id);
  if (!known) parts.vocabulary->add(token.content, token.id, limit, where);
  const bool fresh = parts.added_ids.insert(token.id).second;
  EF_CHECK(fresh, ModelError, "{}: token '{}': expected once, found twice", where, token.content);
  parts.added.push_back(std::move(token));
}

void apply_added_tokens_decoder(TokenizerParts& parts, const Node& config) {
  if (config.value.is_null()) return;
  const Node decoder = fields::member(config, "added_tokens_decoder");
  if (decoder.value.is_null()) return;
  if (!decoder.value.is_object()) fields::wrong(decoder, "an object of ids and tokens");
  const size_t limit = Vocabulary::limit_for(parts.vocabulary->size() + decoder.value.size());
  for (const auto& [key, value] : decoder.value.items()) {
    const Node node{value, fmt::format("{}[\"{}\"]", decoder.where, key)};
    AddedToken token = read_added_token(node);
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (error != std::errc() || end != key.data() + key.size()) {
      fail<ModelError>("{}: expected a token id as the key, found '{}'", node.where, key);
    }
    const bool known = parts.vocabulary->find(token.content) == token.id && parts.added_ids.contains(token.id);
    if (!known) add_added_token(parts, std::move(token), limit, node.where);
  }
}

void apply_tokenizer_config(TokenizerParts& parts, const Node& config) {
  if (config.value.is_null()) return;
  const auto set = [&](std::optional<TokenId>& id, const char* key) {
    if (const auto found = configured_token(parts, config, key)) id = found;
  };
  set(parts.bos, "bos_token");
  set(parts.eos, "eos_token");
  set(parts.unk, "unk_token");
  set(parts.pad, "pad_token");
  if (parts.eos) parts.eog.push_back(*parts.eos);
  // An explicit add_bos_token decides over the template, as transformers rebuilds the template from it.
  const bool has_bos = parts.bos && !parts.prefix.empty() && parts.prefix.front() == *parts.bos;
  const bool want_bos = fields::boolean_or(config, "add_bos_token", has_bos);
  if (want_bos && !has_bos && parts.bos) parts.prefix.insert(parts.prefix.begin(), *parts.bos);
  if (!want_bos && has_bos) parts.prefix.erase(parts.prefix.begin());
  const bool has_eos = parts.eos && !parts.suffix.empty() && parts.suffix.back() == *parts.eos;
  const bool want_eos = fields::boolean_or(config, "add_eos_token", has_eos);
  if (want_eos && !has_eos && parts.eos) parts.suffix.push_back(*parts.eos);
  if (!want_eos && has_eos) parts.suffix.pop_back();
}

Tokenizer load_tokenizer_json_text(std::string_view text, const json& config, std::string_view name) {
  TokenizerJson file = parse_tokenizer_json(text, name);
  const Node root{file.rest, fmt::format("{}:", name)};
  const Node model = fields::member(root, "model");
  if (!model.value.is_object()) fields::wrong(model, "an object");
  // Old files leave the type out where merges say it.
  if (!(fields::member(model, "type").value.is_null() && file.has_merges) && fields::type_of(model) != "BPE") {
    fields::unknown_type(model, "model", "BPE");
  }
  TokenizerParts parts;
  const Node added = fields::member(root, "added_tokens");
  const size_t limit = Vocabulary::limit_for(file.vocab.size() + (added.value.is_array() ? added.value.size() : 0));
  load_vocabulary(parts, file, limit, name);
  load_bpe(parts, model, file, name);
  load_added_tokens(parts, added, limit);
  parts.normalizer = make_normalizer(fields::member(root, "normalizer"));
  parts.pretokenizer = make_pretokenizer(fields::member(root, "pre_tokenizer"));
  parts.decoder = Decoder(fields::member(root, "decoder"));
  load_post_processor(parts, fields::member(root, "post_processor"));
  // Without a configuration, what the template puts in front is the BOS.
  if (!parts.prefix.empty()) parts.bos = parts.prefix.front();
  apply_tokenizer_config(parts, {config, "tokenizer_config.json:"});
  return Tokenizer(std::make_shared<TokenizerCore>(std::move(parts)));
}

Tokenizer load_tokenizer_json(const std::filesystem::path& path, const json& config) {
  return load_tokenizer_json_text(read_text_file(path), config, path.string());
}

Tokenizer load_tokenizer_folder(const std::filesystem::path& folder) {
  return load_tokenizer_files(*folder_files(folder));
}

Tokenizer load_tokenizer_files(const SideFiles& files) {
  const json config = read_json_file(files, "tokenizer_config.json");
  const auto load = [&] {
    if (const auto text = files.read("tokenizer.json"))
      return load_tokenizer_json_text(*text, config, files.where("tokenizer.json"));
    if (const auto bytes = files.read("tokenizer.model"))
      return load_sentencepiece_bytes(*bytes, config, files.where("tokenizer.model"));
    fail<ModelError>("{}: expected tokenizer.json or tokenizer.model, found neither", files.where(""));
  };
  Tokenizer tokenizer = load();
  for (const char* name : {"config.json", "generation_config.json"}) {
    const json file = read_json_file(files, name);
    if (!file.is_object()) continue;
    const Node eos = fields::member({file, files.where(name) + ":"}, "eos_token_id");
    tokenizer = tokenizer.with_eog(token_ids_from_json(eos.value, eos.where));
  }
  return tokenizer;
}

}  // namespace ef
