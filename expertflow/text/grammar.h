// Grammars over bytes that an answer must match, and the matcher that says which tokens may come next. Rules may refer
// to each other and to themselves (not as their own first part).
#pragma once
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/text/tokenizer.h"

namespace ef {

/// Immutable once built; shared by all answers that it constrains.
class Grammar {
 public:
  using ByteSet = std::bitset<256>;
  struct Element {
    enum class Kind : uint8_t { kBytes, kRule, kEnd } kind = Kind::kEnd;
    uint32_t index = 0;  ///< of a byte set, or of a rule
  };
  using Sequence = std::vector<Element>;  ///< without kEnd

  // Parts of a grammar that is being built. RequestError where it grows beyond kMostElements.
  Sequence bytes(const ByteSet& set);
  Sequence literal(std::string_view text);
  /// Alternatives that begin alike share their beginning, so that the matcher follows it once.
  Sequence choice(std::vector<Sequence> alternatives);
  Sequence optional(const Sequence& part) { return choice({part, {}}); }
  Sequence repeat(const Sequence& part, int64_t min, int64_t max);  ///< max < 0: no bound
  /// A mark of a model family, "<|channel|>": its special token, or the text spelled out by ordinary ones.
  Sequence mark(std::string_view text);
  /// Any ordinary text up to and with the first occurrence of this mark.
  Sequence until(std::string_view text);
  /// A rule that is defined later, so that others may refer to it meanwhile.
  uint32_t declare();
  void define(uint32_t rule, std::vector<Sequence> alternatives);
  static Sequence reference(uint32_t rule) { return {{Element::Kind::kRule, rule}}; }
  void set_root(const Sequence& root);

  static constexpr size_t kMostElements = 200000;
  static constexpr char kSpecial = '\xff';  ///< stands before a special token's text; no text in UTF-8 has this byte

 private:
  friend class GrammarMatcher;
  void append(const Sequence& part);
  std::vector<Sequence> factored(std::vector<Sequence> alternatives);
  std::vector<ByteSet> sets_;
  std::vector<Element> elements_;             ///< sequences, each ended by kEnd
  std::vector<std::vector<uint32_t>> rules_;  ///< where the alternatives begin in elements_
  uint32_t root_ = 0;
};

/// a then b.
Grammar::Sequence operator+(Grammar::Sequence a, const Grammar::Sequence& b);

/// What a grammar sees of a token: kSpecial and its text for special ones, else its bytes. Empty: no grammar takes it.
std::string grammar_bytes(const Tokenizer& tokenizer, TokenId token);

/// The tokens of a vocabulary in the order of what a grammar sees of them, so that those with a beginning in common are
/// looked at together.
class TokenOrder {
 public:
  explicit TokenOrder(const Tokenizer& tokenizer);
  struct Entry {
    std::string bytes;
    TokenId token;
    uint32_t shared;  ///< bytes in common with the entry before
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

class GrammarMatcher {
 public:
  /// Ways to go on that a text may leave open at once; RequestError beyond it, here and in all members.
  static constexpr size_t kMostWays = 256;
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

  /// Whether the text may go on with these bytes.
  bool takes(std::string_view bytes);
  /// Goes on with them; they must be taken.
  void advance(std::string_view bytes);
  void for_each_taken(const TokenOrder& order, const std::function<void(TokenId)>& visit);
  bool complete() const;       ///< the text may end here
  bool only_complete() const;  ///< it must

 private:
  // A state is the set of stacks in which the text so far may have left us. A stack is a node: where it goes on, and
  // the stack below. Node 0: nothing is left to match.
  using State = std::vector<uint32_t>;
  struct Node {
    uint32_t below, position;
  };
  uint32_t node(uint32_t below, uint32_t position);
  void expand(uint32_t below, uint32_t position, State& state, int depth = 0);
  const State& after(uint32_t node, uint8_t byte);
  State next(const State& state, uint8_t byte);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_index_;
  std::unordered_map<uint64_t, State> steps_;
  State state_;
};

}  // namespace ef
