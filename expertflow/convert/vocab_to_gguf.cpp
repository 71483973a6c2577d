#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/convert/families.h"
#include "expertflow/convert/vocab.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/text/bpe.h"
#include "expertflow/text/spm.h"
#include "expertflow/text/tokenizer_gguf_pre.h"
#include "expertflow/text/tokenizer_json_sax.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Type = GgufValue::Type;

constexpr const char* kGpt2 = R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";

struct VocabRows {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<double> scores;  ///< "llama" only

  /// Ids without token keep their place, as llama.cpp's converter names them.
  void resize(size_t size) {
    for (size_t i = tokens.size(); i < size; ++i) tokens.push_back(fmt::format("[PAD{}]", i));
    types.resize(size, int64_t(PieceType::kUnused));
  }
  void set(int64_t id, std::string text, PieceType type, const std::string& where) {
    EF_CHECK(id >= 0 && size_t(id) < tokens.size(), ModelError,
             "{}: token '{}': expected an id below {} (vocab_size), found {}", where, text, tokens.size(), id);
    tokens[size_t(id)] = std::move(text);
    types[size_t(id)] = int64_t(type);
  }
};

json json_or_null(const fs::path& path) {
  if (!fs::exists(path)) return nullptr;
  json out = json::parse(read_text_file(path), nullptr, false);
  EF_CHECK(!out.is_discarded(), ModelError, "{}: expected JSON, found something else", path.string());
  return out;
}

// ---- byte-level BPE ----

/// The same expression however it is spelt: \x{2026} or the character, a line break or \n, \" or ".
std::string canonical(const std::string& expression) {
  std::string out;
  for (size_t i = 0; i < expression.size();) {
    if (expression[i] == '\n' || expression[i] == '\r') {
      out += expression[i++] == '\n' ? "\\n" : "\\r";
      continue;
    }
    if (expression.compare(i, 2, "\\\"") == 0) {
      out += expression[i + 1], i += 2;
      continue;
    }
    const size_t close = expression.compare(i, 3, "\\x{") == 0 ? expression.find('}', i) : std::string::npos;
    uint32_t c = 0;
    if (close == std::string::npos ||
        std::from_chars(expression.data() + i + 3, expression.data() + close, c, 16).ec != std::errc()) {
      out += expression[i++];
      continue;
    }
    utf8_append(out, char32_t(c));
    i = close + 1;
  }
  return out;
}

/// The expressions that cut a text one after another; false if a step is none.
bool collect_expressions(const json& step, std::vector<std::string>& out) {
  const std::string type = step.value("type", "");
  if (type == "Sequence") {
    for (const json& inner : step.value("pretokenizers", json::array()))
      if (!collect_expressions(inner, out)) return false;
    return true;
  }
  if (type == "ByteLevel") {
    if (step.value("add_prefix_space", true)) return false;
    if (step.value("use_regex", true)) out.push_back(kGpt2);
    return true;
  }
  if (type == "Digits") {
    out.push_back(R"(\p{N})");
    return step.value("individual_digits", false);
  }
  if (type != "Split" || !step.contains("pattern") || !step["pattern"].contains("Regex")) return false;
  const std::string behavior = step.value("behavior", "");
  const bool isolated = behavior == "Isolated" && !step.value("invert", false);
  if (!isolated && !(behavior == "Removed" && step.value("invert", false))) return false;
  out.push_back(step["pattern"]["Regex"].get<std::string>());
  return true;
}

/// Names that llama.cpp's converter gives to published models' tokenizers come first.
std::string find_pre_name(const json& rest) {
  std::vector<std::string> wanted;
  const json& pre = rest.contains("pre_tokenizer") ? rest["pre_tokenizer"] : json();
  const bool known_steps = pre.is_object() && collect_expressions(pre, wanted);
  const bool ignore_merges = rest["model"].value("ignore_merges", false);
  std::vector<std::string> names = {"qwen2",  "llama-bpe", "glm4",   "deepseek-v3", "deepseek-llm",
                                    "gpt-4o", "olmo",      "tekken", "refact"};
  for (std::string& name : known_gguf_pre()) names.push_back(std::move(name));
  for (const std::string& name : names) {
    const GgufPre* row = known_steps ? find_gguf_pre(name) : nullptr;
    if (!row || row->ignore_merges != ignore_merges || row->expressions.size() != wanted.size()) continue;
    if (std::equal(wanted.begin(), wanted.end(), row->expressions.begin(),
                   [](const std::string& a, const std::string& b) { return canonical(a) == canonical(b); }))
      return name;
  }
  fail<ModelError>(
      "tokenizer.json: pre_tokenizer: expected one that tokenizer.ggml.pre has a name for, found {}; if one "
      "of the known names is right, give it with --tokenizer-pre",
      pre.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 300));
}

void add_added_tokens(VocabRows& rows, const json& rest, const json& config, const std::string& where) {
  const auto add = [&](const json& token, int64_t id) {
    const bool special = token.value("special", false);
    rows.set(id, token.value("content", ""), special ? PieceType::kControl : PieceType::kUserDefined, where);
  };
  if (rest.contains("added_tokens"))
    for (const json& token : rest["added_tokens"]) add(token, token.value("id", int64_t{-1}));
  if (!config.is_object() || !config.contains("added_tokens_decoder") || rest.contains("added_tokens")) return;
  for (const auto& [id, token] : config["added_tokens_decoder"].items()) add(token, std::stoll(id));
}

/// Adds the tokens of tokenizer.json; merges as "left right".
void read_bpe(TokenizerJson& file, const json& config, VocabRows& rows, GgufMetadata& metadata, const std::string& pre,
              const std::string& where) {
  for (auto& [text, id] : file.vocab) rows.set(id, text, PieceType::kNormal, where);
  add_added_tokens(rows, file.rest, config, where);
  std::vector<std::string> merges;
  merges.reserve(file.merges.size());
  for (const auto& [left, right] : file.merges) merges.push_back(left + " " + right);
  set_text(metadata, "tokenizer.ggml.model", "gpt2");
  set_text(metadata, "tokenizer.ggml.pre", pre.empty() ? find_pre_name(file.rest) : pre);
  metadata.values["tokenizer.ggml.merges"] = {Type::kArray, Type::kString, std::move(merges)};
}

// ---- SentencePiece ----

void read_sentencepiece(const fs::path& path, const json& rest, const json& config, VocabRows& rows,
                        GgufMetadata& metadata) {
  const SpmModel model = parse_sentencepiece_model(read_text_file(path), path.string());
  EF_CHECK(model.kind == SpmModel::Kind::kBpe, ModelError,
           "{}: expected a BPE model, found a unigram one: GGUF's \"llama\" tokenizer is BPE", path.string());
  rows.scores.assign(rows.tokens.size(), -10000.0);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SpmPiece& piece = model.pieces[i];
    rows.set(int64_t(i), piece.text, piece.type, path.string());
    rows.scores[i] = piece.score;
  }
  // Tokens beyond the model's are added ones; those within it keep their kind.
  VocabRows added;
  added.resize(rows.tokens.size());
  add_added_tokens(added, rest, config, path.string());
  for (size_t i = model.pieces.size(); i < rows.tokens.size(); ++i)
    rows.tokens[i] = added.tokens[i], rows.types[i] = added.types[i];
  set_text(metadata, "tokenizer.ggml.model", "llama");
  set_text(metadata, "tokenizer.ggml.pre", "default");
  set_boolean(metadata, "tokenizer.ggml.add_space_prefix", model.add_dummy_prefix);
  if (model.remove_extra_whitespaces) set_boolean(metadata, "tokenizer.ggml.remove_extra_whitespaces", true);
}

/// tokenizer.json made from a SentencePiece model: merges in order of score, so that a token's score is the rank of the
/// first merge that makes it.
void read_fallback_bpe(TokenizerJson& file, const json& config, VocabRows& rows, GgufMetadata& metadata,
                       const std::string& where) {
  const std::string unk = file.rest["model"].contains("unk_token") && file.rest["model"]["unk_token"].is_string()
                              ? file.rest["model"]["unk_token"].get<std::string>()
                              : "";
  std::unordered_map<std::string, int64_t> ids;
  for (auto& [text, id] : file.vocab) {
    rows.set(id, text, byte_of_token(text) ? PieceType::kByte : PieceType::kNormal, where);
    ids.emplace(text, id);
  }
  rows.scores.assign(rows.tokens.size(), -double(file.merges.size()) - 1);
  for (size_t rank = file.merges.size(); rank-- > 0;) {
    const auto it = ids.find(file.merges[rank].first + file.merges[rank].second);
    if (it != ids.end()) rows.scores[size_t(it->second)] = -double(rank);
  }
  add_added_tokens(rows, file.rest, config, where);
  if (const auto it = ids.find(unk); it != ids.end()) rows.types[size_t(it->second)] = int64_t(PieceType::kUnknown);
  set_text(metadata, "tokenizer.ggml.model", "llama");
  set_text(metadata, "tokenizer.ggml.pre", "default");
  const std::string steps =
      file.rest.value("normalizer", json()).dump() + file.rest.value("pre_tokenizer", json()).dump();
  const bool prefix = steps.find("Prepend") != std::string::npos ||
                      (steps.find("Metaspace") != std::string::npos && steps.find("never") == std::string::npos);
  set_boolean(metadata, "tokenizer.ggml.add_space_prefix", prefix);
}

bool is_byte_level(const json& rest) {
  return rest.contains("pre_tokenizer") &&
         rest["pre_tokenizer"].dump(-1, ' ', false, json::error_handler_t::replace).find("\"ByteLevel\"") !=
             std::string::npos;
}

void write_special_ids(const Tokenizer& tokenizer, const Config& config, GgufMetadata& metadata) {
  const auto set = [&](const char* name, std::optional<TokenId> id) {
    if (id) set_integer(metadata, std::string("tokenizer.ggml.") + name + "_token_id", *id);
  };
  std::vector<TokenId> ends;
  if (tokenizer.eos()) ends.push_back(*tokenizer.eos());
  for (TokenId id : config.eos)
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  set("bos", tokenizer.bos() ? tokenizer.bos() : config.bos);
  static constexpr const char* kEnds[] = {"eos", "eot", "eom"};
  for (size_t i = 0; i < std::min<size_t>(3, ends.size()); ++i) set(kEnds[i], ends[i]);
  set("unknown", tokenizer.unk());
  set("padding", tokenizer.pad());
  set_boolean(metadata, "tokenizer.ggml.add_bos_token", tokenizer.add_bos());
  set_boolean(metadata, "tokenizer.ggml.add_eos_token", tokenizer.add_eos());
}

void write_chat_templates(const Checkpoint& checkpoint, GgufMetadata& metadata) {
  const ChatTemplates templates = load_chat_templates(checkpoint);
  std::vector<std::string> further;
  for (const std::string& name : templates.names()) {
    const std::string key = "tokenizer.chat_template";
    const std::string& source = templates.select(false, name).source();
    if (name == "default") {
      set_text(metadata, key, source);
    } else {
      set_text(metadata, key + "." + name, source);
      further.push_back(name);
    }
  }
  if (!further.empty()) metadata.values["tokenizer.chat_templates"] = {Type::kArray, Type::kString, std::move(further)};
}

}  // namespace

void require_same_tokens(const Tokenizer& source, const Tokenizer& result) {
  static constexpr const char* kSamples[] = {
      "Hello, world! It's 3.14159 o'clock; don't WE'LL they'Ve?",
      "  two  spaces\n\n\tand tabs \r\n  end ",
      "int main(int argc, char** argv) { return x[12] << 3; } // 1234567890",
      "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c\xe3\x80\x82 "
      "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe3\x83\x86\xe3\x82\xad\xe3\x82\xb9\xe3\x83\x88 "
      "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4",
      "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \xce\xba\xcf\x8c\xcf\x83\xce\xbc\xce\xb5 "
      "\xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7 caf\xc3\xa9 na\xc3\xafve "
      "\xf0\x9f\x98\x80\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd",
      "https://example.org/a_b?c=d&e=%20 #hash @user <tag/> $5.00 a-b--c ... !!!",
  };
  for (const char* sample : kSamples) {
    EF_CHECK(source.encode(sample) == result.encode(sample), ModelError,
             "the tokenizer cannot be converted: its result would cut the text '{}' into other tokens", sample);
  }
}

void write_gguf_vocabulary(const SourceModel& source, const std::string& pre, GgufMetadata& metadata,
                           std::vector<std::string>& notes) {
  const std::optional<Tokenizer> tokenizer = load_tokenizer(source.checkpoint, "");
  if (!tokenizer) {
    set_text(metadata, "tokenizer.ggml.model", "none");
    notes.push_back("the model has no tokenizer, and neither has the result");
    return;
  }
  const fs::path& folder = source.checkpoint.path;
  const json config = json_or_null(folder / "tokenizer_config.json");
  VocabRows rows;
  rows.resize(size_t(std::max(0, source.config.vocab)));
  TokenizerJson file;
  file.rest = json::object();
  const std::string where = (folder / "tokenizer.json").string();
  if (fs::exists(folder / "tokenizer.json")) file = parse_tokenizer_json(read_text_file(where), where);
  if (file.has_vocab && is_byte_level(file.rest)) {
    read_bpe(file, config, rows, metadata, pre, where);
  } else if (fs::exists(folder / "tokenizer.model")) {
    read_sentencepiece(folder / "tokenizer.model", file.rest, config, rows, metadata);
  } else {
    EF_CHECK(file.rest["model"].value("byte_fallback", false), ModelError,
             "{}: expected byte-level BPE or BPE with byte_fallback, found neither: GGUF has no other BPE", where);
    read_fallback_bpe(file, config, rows, metadata, where);
  }
  metadata.values["tokenizer.ggml.tokens"] = {Type::kArray, Type::kString, std::move(rows.tokens)};
  metadata.values["tokenizer.ggml.token_type"] = {Type::kArray, Type::kI32, std::move(rows.types)};
  if (!rows.scores.empty())
    metadata.values["tokenizer.ggml.scores"] = {Type::kArray, Type::kF32, std::move(rows.scores)};
  write_special_ids(*tokenizer, source.config, metadata);
  write_chat_templates(source.checkpoint, metadata);
  metadata.file = "the GGUF to be written";
  require_same_tokens(*tokenizer, load_gguf_tokenizer(gguf_vocab(metadata)));
  if (file.rest.contains("normalizer") && file.rest["normalizer"].is_object() &&
      file.rest["normalizer"].value("type", "") == "NFC")
    notes.push_back("GGUF has no key for the tokenizer's normalisation of text to NFC");
}

}  // namespace ef
