// Byte-pair encoding over a vocabulary: merges of tokenizer.json and of GGUF's "gpt2" model. Same results as Hugging
// Face's implementation: always the merge of lowest rank, the leftmost of equals. n log n in the length of a word.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/base/stop_check.h"

namespace ef {

/// Token texts by id and ids by text. Ids may have holes.
class Vocabulary {
 public:
  /// `where` names the source in messages. ModelError for a negative id, one far beyond the number of tokens (limit), a
  /// duplicate id or a duplicate text.
  void add(std::string text, int64_t id, size_t limit, std::string_view where);
  /// Ids that exist but are not found by their text (holes, empty texts).
  void add_unnamed(int64_t id, size_t limit, std::string_view where);
  std::optional<TokenId> find(std::string_view text) const;
  bool contains(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < texts_.size() && present_[static_cast<size_t>(id)];
  }
  const std::string& text(TokenId id) const { return texts_[static_cast<size_t>(id)]; }  ///< contains(id)
  size_t size() const { return texts_.size(); }                                          ///< largest id + 1
  size_t longest() const { return longest_; }                                            ///< bytes of the longest text

  /// The id bound for a vocabulary of `count` tokens: generous for holes, small enough to allocate.
  static size_t limit_for(size_t count) { return 2 * count + 65536; }

 private:
  void place(int64_t id, size_t limit, std::string_view text, std::string_view where);

  std::deque<std::string> texts_;  // stable addresses: the map's keys view them
  std::vector<bool> present_;
  std::unordered_map<std::string_view, TokenId> ids_;
  size_t longest_ = 0;
};

/// (left, right) -> (rank, merged). Open addressing; a pair added twice keeps the later entry.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    TokenId merged = -1;
  };
  explicit MergeTable(size_t count = 0);
  void add(TokenId left, TokenId right, Merge merge);
  const Merge* find(TokenId left, TokenId right) const;
  size_t size() const { return used_; }

 private:
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

struct BpeOptions {
  std::optional<TokenId>
      unk;  ///< for characters that are not in the vocabulary; without it they are dropped, as upstream does
  bool fuse_unk = false;       ///< neighbouring unknown characters become one unk
  bool byte_fallback = false;  ///< unknown characters become their bytes' tokens <0x00>..<0xFF>
  bool ignore_merges = false;  ///< a word that is a token is not split
};

class Bpe {
 public:
  /// merges: pairs of token texts in order of rank. ModelError naming where, the index and the token if a part or the
  /// result is not in the vocabulary. The vocabulary must outlive this.
  Bpe(const Vocabulary& vocabulary, const BpeOptions& options,
      const std::vector<std::pair<std::string, std::string>>& merges, std::string_view where);

  /// Appends the ids of one word (well-formed UTF-8).
  void encode(std::string_view word, std::vector<TokenId>& out, const StopCheck& stop) const;
  /// See WordModel.
  std::optional<size_t> most_bytes_per_token(bool byte_alphabet) const;

 private:
  void initial_symbols(std::string_view word, std::vector<TokenId>& symbols, const StopCheck& stop) const;
  void merge(std::vector<TokenId>& symbols, const StopCheck& stop) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  MergeTable merges_;
  std::vector<std::optional<TokenId>> byte_tokens_;  // 256
  bool all_bytes_ = false;
};

/// "<0xAB>" for byte fallback.
std::string byte_token(unsigned char byte);
/// The byte of such a token; nullopt for other texts.
std::optional<unsigned char> byte_of_token(std::string_view text);

}  // namespace ef
