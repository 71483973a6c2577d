// Tokenizers from GGUF metadata: "gpt2" (byte-level BPE) and "llama" (SentencePiece BPE).
#include <algorithm>
#include <array>

#include "expertflow/base/errors.h"
#include "expertflow/text/spm.h"
#include "expertflow/text/tokenizer.h"
#include "expertflow/text/tokenizer_core.h"
#include "expertflow/text/tokenizer_gguf_pre.h"

namespace ef {
namespace {

// Tokens that end a turn or a text under any model: a GGUF has no generation_config.json to list them. The names are
// llama.cpp's.
constexpr std::array<std::string_view, 17> kEndTexts = {"<|eot_id|>",
                                                        "<|im_end|>",
                                                        "<|end|>",
                                                        "<|return|>",
                                                        "<|call|>",
                                                        "<|flush|>",
                                                        "<|calls|>",
                                                        "<end_of_turn>",
                                                        "<|endoftext|>",
                                                        "</s>",
                                                        "<|eom_id|>",
                                                        "<EOT>",
                                                        "[EOT]",
                                                        "[EOS]",
                                                        "<|end_of_text|>",
                                                        "<end_of_utterance>",
                                                        "<\xEF\xBD\x9C"
                                                        "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};

std::string where_of(const GgufVocab& vocab) { return vocab.file.empty() ? "GGUF" : vocab.file; }

PieceType type_of_token(const GgufVocab& vocab, size_t index) {
  if (vocab.token_types.empty()) return PieceType::kNormal;
  const int64_t type = vocab.token_types[index];
  EF_CHECK(type >= 0 && type <= 6, ModelError, "{}: tokenizer.ggml.token_type[{}]: expected 0 to 6, found {}",
           where_of(vocab), index, type);
  return type == 0 ? PieceType::kNormal : static_cast<PieceType>(type);
}

void check_sizes(const GgufVocab& vocab) {
  const std::string where = where_of(vocab);
  EF_CHECK(!vocab.tokens.empty(), ModelError, "{}: tokenizer.ggml.tokens: expected tokens, found none", where);
  const auto check = [&](size_t found, const char* key) {
    EF_CHECK(found == 0 || found == vocab.tokens.size(), ModelError,
             "{}: {}: expected {} elements, one a token, found {}", where, key, vocab.tokens.size(), found);
  };
  check(vocab.scores.size(), "tokenizer.ggml.scores");
  check(vocab.token_types.size(), "tokenizer.ggml.token_type");
}

std::vector<std::pair<std::string, std::string>> split_merges(const GgufVocab& vocab) {
  EF_CHECK(
      !vocab.merges.empty(), ModelError,
      "{}: tokenizer.ggml.merges: expected the merges of a \"gpt2\" tokenizer, found none; convert the model again",
      where_of(vocab));
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(vocab.merges.size());
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    const std::string& line = vocab.merges[i];
    const size_t space = line.find(' ', 1);
    EF_CHECK(space != std::string::npos && space + 1 < line.size(), ModelError,
             "{}: tokenizer.ggml.merges[{}]: expected \"left right\", found '{}'", where_of(vocab), i, line);
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

TokenizerParts make_bpe(const GgufVocab& vocab, bool& add_bos) {
  const std::string where = where_of(vocab);
  const GgufPre* pre = find_gguf_pre(vocab.pre);
  EF_CHECK(pre != nullptr, ModelError,
           "{}: tokenizer.ggml.pre: unknown pre-tokenizer '{}' (known: {}); if one of these is right for the model, "
           "override it with "
           "--tokenizer-pre NAME",
           where, vocab.pre, list_of(known_gguf_pre()));
  add_bos = pre->add_bos;
  TokenizerParts parts;
  const size_t limit = Vocabulary::limit_for(vocab.tokens.size());
  const std::string tokens_where = where + ": tokenizer.ggml.tokens";
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (vocab.tokens[i].empty()) {
      parts.vocabulary->add_unnamed(static_cast<int64_t>(i), limit, tokens_where);
      continue;
    }
    parts.vocabulary->add(vocab.tokens[i], static_cast<int64_t>(i), limit, tokens_where);
    const PieceType type = type_of_token(vocab, i);
    const bool special = type == PieceType::kControl || type == PieceType::kUnknown;
    if (!special && type != PieceType::kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<TokenId>(i);
    token.content = vocab.tokens[i];
    token.special = special;
    add_added_token(parts, std::move(token), limit, tokens_where);
  }
  BpeOptions options;
  options.ignore_merges = pre->ignore_merges;
  parts.model =
      std::make_unique<BpeModel>(*parts.vocabulary, options, split_merges(vocab), where + ": tokenizer.ggml.merges");
  parts.pretokenizer = make_regex_pretokenizer(pre->expressions, where + ": tokenizer.ggml.pre");
  const nlohmann::json decoder = {{"type", "ByteLevel"}};
  parts.decoder = Decoder(fields::Node{decoder, where});
  return parts;
}

TokenizerParts make_llama(const GgufVocab& vocab, bool& add_bos) {
  const std::string where = where_of(vocab);
  EF_CHECK(!vocab.scores.empty(), ModelError,
           "{}: tokenizer.ggml.scores: expected the scores of a \"llama\" tokenizer, found none", where);
  SpmModel model;
  model.kind = SpmModel::Kind::kBpe;
  model.add_dummy_prefix = vocab.add_space_prefix.value_or(true);
  model.remove_extra_whitespaces = vocab.remove_extra_whitespaces.value_or(false);
  model.unk_id = vocab.unk.value_or(-1);
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    SpmPiece piece{vocab.tokens[i], vocab.scores[i], type_of_token(vocab, i)};
    // Padding of old conversions: found by id alone.
    if (piece.text.empty()) piece = {fmt::format("[EMPTY_{}]", i), 0, PieceType::kByte};
    if (piece.type == PieceType::kByte && byte_of_token(piece.text)) model.byte_fallback = true;
    model.pieces.push_back(std::move(piece));
  }
  add_bos = true;
  return make_sentencepiece_parts(std::move(model), where + ": tokenizer.ggml.tokens", true);
}

std::optional<TokenId> special_id(const GgufVocab& vocab, const std::optional<int64_t>& id, const char* key) {
  if (!id || *id == -1 || *id == 0xFFFFFFFF) return std::nullopt;  // both are written for "none"
  EF_CHECK(*id >= 0 && static_cast<uint64_t>(*id) < vocab.tokens.size(), ModelError,
           "{}: tokenizer.ggml.{}: expected an id below {}, found {}", where_of(vocab), key, vocab.tokens.size(), *id);
  return static_cast<TokenId>(*id);
}

std::vector<TokenId> end_ids(const TokenizerParts& parts) {
  std::vector<TokenId> ids;
  for (const std::string_view text : kEndTexts) {
    if (const auto id = parts.vocabulary->find(text)) ids.push_back(*id);
  }
  // o200k_harmony ends messages, not turns, with <|end|>.
  const auto call = parts.vocabulary->find("<|call|>");
  const auto end = parts.vocabulary->find("<|end|>");
  if (call && end && parts.vocabulary->find("<|return|>")) std::erase(ids, *end);
  return ids;
}

}  // namespace

Tokenizer load_gguf_tokenizer(const GgufVocab& vocab) {
  const std::string where = where_of(vocab);
  EF_CHECK(has_tokenizer(vocab), ModelError, "{}: tokenizer.ggml.model: expected a tokenizer, found {}", where,
           vocab.model.empty() ? "nothing" : "\"none\"");
  EF_CHECK(vocab.model == "gpt2" || vocab.model == "llama", ModelError,
           "{}: tokenizer.ggml.model: unknown tokenizer '{}' (known: gpt2, llama)", where, vocab.model);
  check_sizes(vocab);
  bool add_bos = false;
  TokenizerParts parts = vocab.model == "gpt2" ? make_bpe(vocab, add_bos) : make_llama(vocab, add_bos);
  parts.bos = special_id(vocab, vocab.bos, "bos_token_id");
  parts.eos = special_id(vocab, vocab.eos, "eos_token_id");
  parts.unk = special_id(vocab, vocab.unk, "unknown_token_id");
  parts.pad = special_id(vocab, vocab.pad, "padding_token_id");
  if (vocab.add_bos.value_or(add_bos) && parts.bos) parts.prefix = {*parts.bos};
  if (vocab.add_eos.value_or(false) && parts.eos) parts.suffix = {*parts.eos};
  parts.eog = end_ids(parts);
  for (const auto& id :
       {parts.eos, special_id(vocab, vocab.eot, "eot_token_id"), special_id(vocab, vocab.eom, "eom_token_id")}) {
    if (id) parts.eog.push_back(*id);
  }
  return Tokenizer(std::make_shared<TokenizerCore>(std::move(parts)));
}

}  // namespace ef
