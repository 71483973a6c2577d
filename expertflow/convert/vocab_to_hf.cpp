#include <algorithm>
#include <unordered_map>

#include "expertflow/base/errors.h"
#include "expertflow/convert/vocab.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/text/spm.h"
#include "expertflow/text/tokenizer_gguf_pre.h"

namespace ef {
namespace {

using nlohmann::ordered_json;

constexpr const char* kWordStart = "\xe2\x96\x81";

PieceType type_of(const GgufVocab& vocab, size_t i) {
  const int64_t type = vocab.token_types.empty() ? 1 : vocab.token_types[i];
  return type == 0 ? PieceType::kNormal : PieceType(type);
}

ordered_json added_token(const GgufVocab& vocab, size_t i) {
  const PieceType type = type_of(vocab, i);
  return {{"id", i},
          {"content", vocab.tokens[i]},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", type == PieceType::kControl || type == PieceType::kUnknown}};
}

/// The last two parts of the file: vocabulary and added tokens.
void add_tokens(const GgufVocab& vocab, ordered_json& file) {
  ordered_json tokens = ordered_json::object();
  file["added_tokens"] = ordered_json::array();
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const PieceType type = type_of(vocab, i);
    if (type == PieceType::kUnused || vocab.tokens[i].empty()) continue;  // ids without token
    tokens[vocab.tokens[i]] = i;
    if (type == PieceType::kControl || type == PieceType::kUnknown || type == PieceType::kUserDefined)
      file["added_tokens"].push_back(added_token(vocab, i));
  }
  file["model"]["vocab"] = std::move(tokens);
}

/// What is put around every text.
ordered_json post_processor(const Tokenizer& tokenizer) {
  ordered_json single = ordered_json::array(), special = ordered_json::object();
  const auto token = [&](TokenId id) {
    const std::string& text = tokenizer.token_text(id);
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    special[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  if (tokenizer.add_bos()) token(*tokenizer.bos());
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (tokenizer.add_eos()) token(*tokenizer.eos());
  if (special.empty()) return nullptr;
  ordered_json pair = single;
  ordered_json second = single;
  for (ordered_json& item : second)
    for (auto& [kind, value] : item.items()) {
      value["type_id"] = 1;
      if (kind == "Sequence") value["id"] = "B";
    }
  for (ordered_json& item : second) pair.push_back(std::move(item));
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

ordered_json empty_file() {
  return {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", ordered_json::array()}};
}

ordered_json byte_level(const GgufVocab& vocab, const Tokenizer& tokenizer) {
  const GgufPre* pre = find_gguf_pre(vocab.pre);
  EF_CHECK(pre, ModelError, "tokenizer.ggml.pre: unknown pre-tokenizer '{}'", vocab.pre);
  ordered_json file = empty_file(), steps = ordered_json::array(), merges = ordered_json::array();
  for (const std::string& expression : pre->expressions)
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  for (const std::string& merge : vocab.merges) {
    const size_t space = merge.find(' ', 1);
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  file["post_processor"] = post_processor(tokenizer);
  file["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", pre->ignore_merges}};
  add_tokens(vocab, file);
  file["model"]["merges"] = std::move(merges);
  return file;
}

/// Every way to make a piece of two pieces, best score first: what Hugging Face's conversion of SentencePiece models
/// does.
ordered_json merges_by_score(const GgufVocab& vocab) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < vocab.tokens.size(); ++i)
    if (type_of(vocab, i) == PieceType::kNormal) ids.emplace(vocab.tokens[i], i);
  struct Merge {
    float score;
    size_t left, right;
  };
  std::vector<Merge> all;
  for (const auto& [text, id] : ids)
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) all.push_back({vocab.scores[id], left->second, right->second});
    }
  std::sort(all.begin(), all.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.left, a.right) < std::tuple(-b.score, b.left, b.right);
  });
  ordered_json out = ordered_json::array();
  for (const Merge& m : all) out.push_back({vocab.tokens[m.left], vocab.tokens[m.right]});
  return out;
}

ordered_json sentencepiece(const GgufVocab& vocab, const Tokenizer& tokenizer) {
  EF_CHECK(!vocab.remove_extra_whitespaces.value_or(false), ModelError,
           "tokenizer.ggml.remove_extra_whitespaces: tokenizer.json has no step that does this");
  ordered_json file = empty_file(), normalizers = ordered_json::array();
  const bool prefix = vocab.add_space_prefix.value_or(true);
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kWordStart}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kWordStart}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
  file["pre_tokenizer"] = nullptr;
  file["post_processor"] = post_processor(tokenizer);
  ordered_json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kWordStart}}}, {"content", " "}},
                           {{"type", "ByteFallback"}},
                           {{"type", "Fuse"}}};
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  file["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  const auto unk = tokenizer.unk();
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", unk ? ordered_json(tokenizer.token_text(*unk)) : ordered_json()},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", true},
                   {"byte_fallback", true},
                   {"ignore_merges", false}};
  add_tokens(vocab, file);
  file["model"]["merges"] = merges_by_score(vocab);
  return file;
}

ordered_json tokenizer_config(const SourceModel& source, const Tokenizer& tokenizer) {
  ordered_json out;
  out["tokenizer_class"] = "PreTrainedTokenizerFast";
  const auto token = [&](const char* key, std::optional<TokenId> id) {
    out[key] = id ? ordered_json(tokenizer.token_text(*id)) : ordered_json();
  };
  token("bos_token", tokenizer.bos());
  token("eos_token", tokenizer.eos());
  token("unk_token", tokenizer.unk());
  token("pad_token", tokenizer.pad());
  out["add_bos_token"] = tokenizer.add_bos();
  out["add_eos_token"] = tokenizer.add_eos();
  out["model_max_length"] = source.config.context_length;
  out["clean_up_tokenization_spaces"] = false;
  const ChatTemplates templates = load_chat_templates(source.checkpoint);
  const std::vector<std::string> names = templates.names();
  if (names.size() == 1 && names.front() == "default") {
    out["chat_template"] = templates.select(false).source();
  } else {
    for (const std::string& name : names)
      out["chat_template"].push_back({{"name", name}, {"template", templates.select(false, name).source()}});
  }
  return out;
}

}  // namespace

void write_hf_vocabulary(const SourceModel& source, const std::string& pre,
                         std::vector<std::pair<std::string, std::string>>& files, std::vector<std::string>& notes) {
  GgufVocab vocab = gguf_vocab(source.checkpoint.gguf.metadata);
  if (!has_tokenizer(vocab)) {
    notes.push_back("the model has no tokenizer, and neither has the result");
    return;
  }
  if (!pre.empty()) vocab.pre = pre;
  const Tokenizer tokenizer = load_gguf_tokenizer(vocab);
  const ordered_json file = vocab.model == "gpt2" ? byte_level(vocab, tokenizer) : sentencepiece(vocab, tokenizer);
  const ordered_json config = tokenizer_config(source, tokenizer);
  files.emplace_back("tokenizer.json", file.dump(1) + "\n");
  files.emplace_back("tokenizer_config.json", config.dump(2) + "\n");
  require_same_tokens(tokenizer, load_tokenizer_json_text(files.front().second, nlohmann::json(config)));
}

}  // namespace ef
