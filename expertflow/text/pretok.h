// Pre-tokenizers of tokenizer.json: they cut text into the pieces that the model encodes one by one.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "expertflow/base/stop_check.h"
#include "expertflow/text/tokenizer_fields.h"

namespace ef {

/// A text and its pieces, in order. Steps cut pieces, drop parts of them, or rewrite the text.
struct PreTokenized {
  struct Piece {
    size_t begin = 0, end = 0;   ///< bytes of text
    bool at_text_start = false;  ///< the piece holds the first character of the whole input (Metaspace's "first")
  };
  std::string text;
  std::vector<Piece> pieces;
  StopCheck stop{};  ///< steps look at it all along

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PreTokenized& pre) const = 0;
  virtual bool drops_text() const { return false; }           ///< some of it may be in no piece
  virtual bool makes_byte_alphabet() const { return false; }  ///< pieces end as byte_to_printable's characters
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Null for a null node. Known: Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit,
/// Sequence; else ModelError.
std::unique_ptr<PreTokenizer> make_pretokenizer(const fields::Node& node);

/// The pipeline of a GGUF's tokenizer.ggml.pre: the expressions one after another, matches isolated, then the byte
/// alphabet.
std::unique_ptr<PreTokenizer> make_regex_pretokenizer(const std::vector<std::string>& expressions,
                                                      std::string_view where);

}  // namespace ef
