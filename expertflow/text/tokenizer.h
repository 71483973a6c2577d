// Text to token ids and back. One class for the tokenizers of tokenizer.json (Hugging Face), of SentencePiece's .model,
// and of GGUF metadata; the loaders below build it. Immutable after loading, cheap to copy, safe to use from several
// threads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/base/side_files.h"
#include "expertflow/base/stop_check.h"

namespace ef {

struct EncodeOptions {
  bool add_special = true;    ///< what the tokenizer puts around a text (BOS, EOS)
  bool parse_special = true;  ///< special tokens written in the text become their ids; false: they are plain text
  StopCheck stop{};           ///< looked at all along: encode() throws StoppedError soon after a stop is asked for
};

class TokenizerCore;

class Tokenizer {
 public:
  explicit Tokenizer(std::shared_ptr<const TokenizerCore> core);

  /// Ill-formed UTF-8 is read as U+FFFD, one for each maximal ill-formed part. RequestError for texts of 1 GiB or more.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// The bytes that a token adds to a text; a token may hold a part of a character. at_start: it is the first token of
  /// the text, where SentencePiece-style tokenizers drop the space that encoding put there. An id without token
  /// (embeddings are often padded beyond the vocabulary) adds nothing.
  std::string token_to_bytes(TokenId id, bool at_start = false) const;
  /// The text of a sequence, well-formed UTF-8 (ill-formed parts become U+FFFD). skip_special leaves special tokens
  /// out.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;

  /// A text of n bytes becomes at least n / this many tokens, whatever it says. Nothing where no such number exists:
  /// white space that is dropped, say, takes any number of bytes and makes no token.
  std::optional<size_t> most_bytes_per_token() const;
  size_t vocab_size() const;                        ///< largest id + 1, added tokens included
  const std::string& token_text(TokenId id) const;  ///< as in the vocabulary file; empty for ids without token
  std::optional<TokenId> find(std::string_view text) const;
  bool is_special(TokenId id) const;

  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  std::optional<TokenId> unk() const;
  std::optional<TokenId> pad() const;
  const std::vector<TokenId>& eog() const;  ///< ids that end generation: sorted, without duplicates
  bool is_eog(TokenId id) const;
  /// A copy that also ends generation at these ids (config.json, generation_config.json). ModelError for an id that is
  /// negative.
  Tokenizer with_eog(std::span<const TokenId> ids) const;

  bool add_bos() const;  ///< encode(add_special) begins with bos()
  bool add_eos() const;
  /// For a prompt that a chat template wrote, encoded without add_special: begins with exactly one BOS (or whatever
  /// this tokenizer puts in front) if add_bos(), judged by the first ids; otherwise unchanged.
  void ensure_one_bos(std::vector<TokenId>& ids) const;

 private:
  std::shared_ptr<const TokenizerCore> core_;
  std::vector<TokenId> eog_;
};

/// tokenizer.json. config: tokenizer_config.json (null if absent): bos_token, eos_token, unk_token, pad_token,
/// add_bos_token, add_eos_token. `name` stands in messages. ModelError names the field, what was expected and what was
/// found.
Tokenizer load_tokenizer_json_text(std::string_view json, const nlohmann::json& config,
                                   std::string_view name = "tokenizer.json");
Tokenizer load_tokenizer_json(const std::filesystem::path& path, const nlohmann::json& config = nullptr);

/// SentencePiece's .model (BPE or unigram).
Tokenizer load_sentencepiece_model(const std::filesystem::path& path, const nlohmann::json& config = nullptr);
Tokenizer load_sentencepiece_bytes(std::string_view bytes, const nlohmann::json& config = nullptr,
                                   std::string_view name = "tokenizer.model");

/// A Hugging Face folder: tokenizer.json, else tokenizer.model, with tokenizer_config.json, and the end-of-sequence ids
/// of config.json and generation_config.json. ModelError if it holds neither tokenizer.
Tokenizer load_tokenizer_folder(const std::filesystem::path& folder);
/// The same of files wherever they are.
Tokenizer load_tokenizer_files(const SideFiles& files);

/// What a GGUF's tokenizer.ggml.* says, as plain data (text does not depend on weights).
struct GgufVocab {
  std::string file;   ///< for messages
  std::string model;  ///< tokenizer.ggml.model
  std::string pre;    ///< tokenizer.ggml.pre; empty if absent
  std::vector<std::string> tokens;
  std::vector<float> scores;         ///< empty, or one a token
  std::vector<int64_t> token_types;  ///< empty, or one a token
  std::vector<std::string> merges;   ///< "left right"
  std::optional<int64_t> bos, eos, eot, eom, unk, pad;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

/// A file without tokenizer says "none" (or nothing); from_gguf refuses such a file.
inline bool has_tokenizer(const GgufVocab& vocab) { return !vocab.model.empty() && vocab.model != "none"; }
/// ModelError for an unknown model or pre (known ones are listed; set `pre` to override), missing merges, ids out of
/// range.
Tokenizer load_gguf_tokenizer(const GgufVocab& vocab);
/// The values of tokenizer.ggml.pre that load_gguf_tokenizer knows.
std::vector<std::string> known_gguf_pre();

/// An eos_token_id of config.json or generation_config.json: an id, a list of ids, or null. ModelError for anything
/// else.
std::vector<TokenId> token_ids_from_json(const nlohmann::json& value, std::string_view where);
/// Sorted union.
std::vector<TokenId> union_of_ids(std::initializer_list<std::span<const TokenId>> lists);

}  // namespace ef
