// The parts of a tokenizer and the pipeline through them. Loaders fill TokenizerParts; Tokenizer holds the core.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "expertflow/text/bpe.h"
#include "expertflow/text/pretok.h"
#include "expertflow/text/tokenizer.h"
#include "expertflow/text/tokenizer_added.h"
#include "expertflow/text/tokenizer_decoder.h"
#include "expertflow/text/tokenizer_normalizer.h"

namespace ef {

/// Encodes one piece (well-formed UTF-8, normalised) by appending its ids.
class WordModel {
 public:
  virtual ~WordModel() = default;
  virtual void encode(std::string_view word, std::vector<TokenId>& out, const StopCheck& stop) const = 0;
  /// Bytes of a word that one token can stand for at most; nothing: there is no bound. byte_alphabet: words consist of
  /// byte_to_printable's characters.
  virtual std::optional<size_t> most_bytes_per_token(bool byte_alphabet) const = 0;
};

struct TokenizerParts {
  std::unique_ptr<Vocabulary> vocabulary = std::make_unique<Vocabulary>();
  std::vector<AddedToken> added;
  std::unordered_set<TokenId> added_ids;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pretokenizer;
  std::unique_ptr<WordModel> model;
  Decoder decoder;
  std::vector<TokenId> prefix, suffix;  ///< what add_special puts around a text
  std::optional<TokenId> bos, eos, unk, pad;
  std::vector<TokenId> eog;
};

class TokenizerCore {
 public:
  explicit TokenizerCore(TokenizerParts parts);
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const;
  std::string token_to_bytes(TokenId id, bool at_start) const;
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;
  bool is_special(TokenId id) const { return known(id) && special_[static_cast<size_t>(id)]; }
  std::optional<size_t> most_bytes_per_token() const { return most_bytes_; }
  const TokenizerParts& parts() const { return parts_; }

 private:
  bool known(TokenId id) const { return parts_.vocabulary->contains(id); }
  void encode_text(std::string_view text, bool at_text_start, std::vector<TokenId>& out, const StopCheck& stop) const;
  std::optional<size_t> find_most_bytes() const;
  DecoderToken decoder_token(TokenId id) const;

  TokenizerParts parts_;
  AddedTokens raw_, normalized_;       // matched before and after normalisation
  std::vector<bool> special_, added_;  // by id
  std::optional<size_t> most_bytes_;
};

/// BPE as the model of a pipeline.
class BpeModel final : public WordModel {
 public:
  template <class... Args>
  explicit BpeModel(Args&&... args) : bpe_(std::forward<Args>(args)...) {}
  void encode(std::string_view word, std::vector<TokenId>& out, const StopCheck& stop) const override {
    bpe_.encode(word, out, stop);
  }
  std::optional<size_t> most_bytes_per_token(bool byte_alphabet) const override {
    return bpe_.most_bytes_per_token(byte_alphabet);
  }

 private:
  Bpe bpe_;
};

/// Sets bos, eos, unk, pad, and what add_bos_token and add_eos_token say, from tokenizer_config.json (null: nothing).
void apply_tokenizer_config(TokenizerParts& parts, const fields::Node& config);
/// The "added_tokens_decoder" of tokenizer_config.json, for models whose vocabulary file lacks these tokens.
void apply_added_tokens_decoder(TokenizerParts& parts, const fields::Node& config);
/// Adds a token that the model's vocabulary may already hold; ModelError if the id is another's.
void add_added_token(TokenizerParts& parts, AddedToken token, size_t limit, const std::string& where);

}  // namespace ef
