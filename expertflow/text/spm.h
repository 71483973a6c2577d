// SentencePiece: the model's data (spm_proto.cpp reads a .model), its normalisation, and its two encoders. Sources: the
// message definitions of sentencepiece_model.proto; BPE by scores and unigram by Viterbi as published with
// SentencePiece.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "expertflow/text/tokenizer_core.h"

namespace ef {

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct SpmPiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct SpmModel {
  enum class Kind { kUnigram = 1, kBpe = 2 };
  Kind kind = Kind::kUnigram;
  std::vector<SpmPiece> pieces;
  std::string charsmap;  ///< precompiled: a double array and the replacements; empty for none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool byte_fallback = false;
  int64_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;  ///< negative: none
};

/// The protobuf message ModelProto. ModelError naming the file, the field and the byte for anything malformed or of an
/// unknown kind.
SpmModel parse_sentencepiece_model(std::string_view bytes, std::string_view name);

/// Rewrites text by the longest matching rule of a precompiled_charsmap.
class CharsMap {
 public:
  /// ModelError if the blob is not well formed.
  CharsMap(std::string_view blob, std::string_view name);
  struct Step {
    std::string_view text;  ///< what comes out
    size_t consumed;        ///< bytes of the input that it stands for
  };
  /// One rule or one character at the front of a non-empty, well-formed text.
  Step next(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// SentencePiece's normalisation: charsmap, white space removed or kept, a space in front, spaces written as U+2581.
/// User-defined pieces stay as they are.
class SpmNormalizer final : public Normalizer {
 public:
  SpmNormalizer(const SpmModel& model, std::string_view name);
  std::string apply(std::string text, const StopCheck& stop) const override;
  /// Without rules and with white space kept nothing is dropped; rules may turn anything into nothing.
  std::optional<size_t> most_shrinking() const override;

 private:
  std::unique_ptr<CharsMap> map_;
  LongestMatcher user_defined_;
  bool add_dummy_prefix_, remove_extra_, escape_;
};

/// What both encoders share: pieces by text (normal, user-defined, unused), bytes, unknown.
class SpmVocabulary {
 public:
  SpmVocabulary(const SpmModel& model, std::string_view name);
  struct Entry {
    TokenId id;
    float score;
    PieceType type;
  };
  const Entry* find(std::string_view text) const;
  size_t longest() const { return longest_; }
  /// Nothing: a run of unknown characters becomes one token.
  std::optional<size_t> most_bytes_per_token() const {
    return bytes_.empty() ? std::nullopt : std::optional<size_t>(longest_);
  }
  /// Appends what stands for a piece that is not in the vocabulary: its bytes, or one unk for a run of them.
  void append_unknown(std::string_view piece, bool& previous_unknown, std::vector<TokenId>& out) const;

  LongestMatcher user_defined;
  float min_score = 0, max_score = 0;  ///< of normal pieces

 private:
  std::unordered_map<std::string, Entry> entries_;
  std::vector<TokenId> bytes_;  // 256, or empty without byte fallback
  TokenId unk_ = -1;
  size_t longest_ = 0;
};

/// The pair of neighbours whose union has the highest score is merged, the leftmost of equals. n log n.
class SpmBpe final : public WordModel {
 public:
  explicit SpmBpe(std::shared_ptr<const SpmVocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}
  void encode(std::string_view text, std::vector<TokenId>& out, const StopCheck& stop) const override;
  std::optional<size_t> most_bytes_per_token(bool) const override { return vocabulary_->most_bytes_per_token(); }

 private:
  std::shared_ptr<const SpmVocabulary> vocabulary_;
};

/// The segmentation of the highest total score.
class SpmUnigram final : public WordModel {
 public:
  explicit SpmUnigram(std::shared_ptr<const SpmVocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}
  void encode(std::string_view text, std::vector<TokenId>& out, const StopCheck& stop) const override;
  std::optional<size_t> most_bytes_per_token(bool) const override { return vocabulary_->most_bytes_per_token(); }

 private:
  std::shared_ptr<const SpmVocabulary> vocabulary_;
};

/// Parts of a SentencePiece tokenizer but for bos, eos and the like. user_defined_splits: user-defined pieces cut the
/// text before normalisation (GGUF, as llama.cpp) instead of inside it (SentencePiece).
TokenizerParts make_sentencepiece_parts(SpmModel model, std::string_view name, bool user_defined_splits);

}  // namespace ef
