#include "expertflow/text/grammar.h"

#include <algorithm>
#include <map>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {

Grammar::Sequence operator+(Grammar::Sequence a, const Grammar::Sequence& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Grammar::Sequence Grammar::bytes(const ByteSet& set) {
  const auto it = std::find(sets_.begin(), sets_.end(), set);
  const auto index = uint32_t(it - sets_.begin());
  if (it == sets_.end()) sets_.push_back(set);
  return {{Element::Kind::kBytes, index}};
}

Grammar::Sequence Grammar::literal(std::string_view text) {
  Sequence all;
  for (const char c : text) all = std::move(all) + bytes(ByteSet().set(uint8_t(c)));
  return all;
}

Grammar::Sequence Grammar::choice(std::vector<Sequence> alternatives) {
  const uint32_t rule = declare();
  define(rule, factored(std::move(alternatives)));
  return reference(rule);
}

std::vector<Grammar::Sequence> Grammar::factored(std::vector<Sequence> alternatives) {
  const auto key = [](const Element& e) { return std::pair(e.kind, e.index); };
  std::vector<std::vector<Sequence>> groups;  // by their first element, in order of appearance
  std::map<std::pair<Element::Kind, uint32_t>, size_t> group_of;
  bool empty = false;
  size_t total = 0;
  for (Sequence& one : alternatives) {
    total += one.size();
    EF_CHECK(total <= kMostElements, RequestError, "the grammar is too large: more than {} parts", kMostElements);
    if (one.empty()) {
      empty = true;
      continue;
    }
    const auto [at, added] = group_of.try_emplace(key(one[0]), groups.size());
    if (added) groups.emplace_back();
    groups[at->second].push_back(std::move(one));
  }
  std::vector<Sequence> out;
  for (std::vector<Sequence>& group : groups) {
    if (group.size() == 1) {
      out.push_back(std::move(group[0]));
      continue;
    }
    size_t common = group[0].size();
    for (const Sequence& one : group) {
      size_t n = 0;
      while (n < std::min(common, one.size()) && key(one[n]) == key(group[0][n])) ++n;
      common = n;
    }
    Sequence front(group[0].begin(), group[0].begin() + std::ptrdiff_t(common));
    for (Sequence& one : group) one.erase(one.begin(), one.begin() + std::ptrdiff_t(common));
    out.push_back(std::move(front) + choice(std::move(group)));
  }
  if (empty) out.emplace_back();
  return out;
}

// part{min} and then up to max - min of them, each within the one before; or a rule that comes back to itself.
Grammar::Sequence Grammar::repeat(const Sequence& part, int64_t min, int64_t max) {
  Sequence all, rest;
  for (int64_t i = 0; i < min; ++i) {
    all = std::move(all) + part;
    EF_CHECK(all.size() <= kMostElements, RequestError, "the grammar is too large: a part is repeated {} times", min);
  }
  if (max < 0) {
    const uint32_t rule = declare();
    define(rule, {part + reference(rule), {}});
    return std::move(all) + reference(rule);
  }
  for (int64_t i = min; i < max; ++i) rest = optional(part + rest);
  return std::move(all) + rest;
}

Grammar::Sequence Grammar::mark(std::string_view text) {
  return choice({literal(kSpecial + std::string(text)), literal(text)});
}

// Knuth, Morris and Pratt as rules: one for each number of bytes of `text` that the end of what was seen matches.
Grammar::Sequence Grammar::until(std::string_view text) {
  const size_t n = text.size();
  const Sequence special = literal(kSpecial + std::string(text));
  std::vector<uint32_t> rules(n);
  for (uint32_t& rule : rules) rule = declare();
  std::vector<size_t> fail(n + 1, 0);
  for (size_t i = 1; i < n; ++i) {
    size_t k = fail[i];
    while (k > 0 && text[i] != text[k]) k = fail[k];
    fail[i + 1] = text[i] == text[k] ? k + 1 : 0;
  }
  for (size_t i = 0; i < n; ++i) {
    std::vector<ByteSet> to(n + 1);
    for (int byte = 0; byte < 256; ++byte) {
      if (byte == uint8_t(kSpecial)) continue;
      size_t k = i;
      while (k > 0 && uint8_t(text[k]) != byte) k = fail[k];
      if (uint8_t(text[k]) == byte) ++k;
      to[k].set(size_t(byte));
    }
    std::vector<Sequence> alternatives{special};
    for (size_t k = 0; k <= n; ++k)
      if (to[k].any()) alternatives.push_back(k == n ? bytes(to[k]) : bytes(to[k]) + reference(rules[k]));
    define(rules[i], std::move(alternatives));
  }
  return reference(rules[0]);
}

uint32_t Grammar::declare() {
  rules_.emplace_back();
  return uint32_t(rules_.size() - 1);
}

void Grammar::append(const Sequence& part) {
  elements_.insert(elements_.end(), part.begin(), part.end());
  elements_.push_back({Element::Kind::kEnd, 0});
  EF_CHECK(elements_.size() <= kMostElements, RequestError, "the grammar is too large: more than {} parts",
           kMostElements);
}

void Grammar::define(uint32_t rule, std::vector<Sequence> alternatives) {
  for (const Sequence& part : alternatives) {
    rules_[rule].push_back(uint32_t(elements_.size()));
    append(part);
  }
}

void Grammar::set_root(const Sequence& root) {
  root_ = uint32_t(elements_.size());
  append(root);
}

std::string grammar_bytes(const Tokenizer& tokenizer, TokenId token) {
  std::string bytes = tokenizer.token_to_bytes(token);
  if (tokenizer.is_special(token)) return bytes.empty() ? bytes : Grammar::kSpecial + bytes;
  return bytes.find(Grammar::kSpecial) == std::string::npos ? bytes : std::string();
}

TokenOrder::TokenOrder(const Tokenizer& tokenizer) {
  for (size_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string bytes = grammar_bytes(tokenizer, TokenId(id));
    if (!bytes.empty()) entries_.push_back({std::move(bytes), TokenId(id), 0});
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.bytes < b.bytes; });
  for (size_t i = 1; i < entries_.size(); ++i) {
    const std::string &a = entries_[i - 1].bytes, &b = entries_[i].bytes;
    const size_t most = std::min(a.size(), b.size());
    size_t n = 0;
    while (n < most && a[n] == b[n]) ++n;
    entries_[i].shared = uint32_t(n);
  }
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  nodes_.push_back({0, 0});
  expand(0, grammar_->root_, state_);
}

uint32_t GrammarMatcher::node(uint32_t below, uint32_t position) {
  const auto [it, added] = node_index_.try_emplace((uint64_t(below) << 32) | position, uint32_t(nodes_.size()));
  if (added) nodes_.push_back({below, position});
  return it->second;
}

void GrammarMatcher::expand(uint32_t below, uint32_t position, State& state, int depth) {
  using Kind = Grammar::Element::Kind;
  constexpr int kMostDepth = 1000;
  EF_CHECK(depth < kMostDepth, RequestError, "the grammar refers to itself without anything in between");
  for (;;) {
    const Grammar::Element& element = grammar_->elements_[position];
    if (element.kind == Kind::kRule) {
      // What ends with a rule needs no return to it: loops do not grow the stack.
      const bool last = grammar_->elements_[position + 1].kind == Kind::kEnd;
      const uint32_t back = last ? below : node(below, position + 1);
      for (const uint32_t alternative : grammar_->rules_[element.index]) expand(back, alternative, state, depth + 1);
      return;
    }
    if (element.kind == Kind::kEnd && below != 0) {
      position = nodes_[below].position;
      below = nodes_[below].below;
      continue;
    }
    const uint32_t top = element.kind == Kind::kEnd ? 0 : node(below, position);
    if (std::find(state.begin(), state.end(), top) != state.end()) return;
    EF_CHECK(state.size() < kMostWays, RequestError, "the grammar leaves more than {} ways open at once", kMostWays);
    state.push_back(top);
    return;
  }
}

const GrammarMatcher::State& GrammarMatcher::after(uint32_t from, uint8_t byte) {
  const auto [it, added] = steps_.try_emplace((uint64_t(from) << 8) | byte);
  if (!added || from == 0) return it->second;
  const Node top = nodes_[from];
  State next;
  if (grammar_->sets_[grammar_->elements_[top.position].index][byte]) expand(top.below, top.position + 1, next);
  return it->second = std::move(next);  // expand() adds no steps
}

GrammarMatcher::State GrammarMatcher::next(const State& state, uint8_t byte) {
  if (state.size() == 1) return after(state[0], byte);
  State all;
  for (const uint32_t top : state)
    for (const uint32_t to : after(top, byte))
      if (std::find(all.begin(), all.end(), to) == all.end()) all.push_back(to);
  EF_CHECK(all.size() <= kMostWays, RequestError, "the grammar leaves more than {} ways open at once", kMostWays);
  return all;
}

bool GrammarMatcher::takes(std::string_view bytes) {
  if (bytes.empty()) return false;
  State state = state_;
  for (const char c : bytes) {
    state = next(state, uint8_t(c));
    if (state.empty()) return false;
  }
  return true;
}

void GrammarMatcher::advance(std::string_view bytes) {
  for (const char c : bytes) state_ = next(state_, uint8_t(c));
  // What was remembered of long texts is not worth its memory.
  constexpr size_t kMostNodes = 100000;
  if (nodes_.size() > kMostNodes || steps_.size() > 4 * kMostNodes) steps_.clear();
}

void GrammarMatcher::for_each_taken(const TokenOrder& order, const std::function<void(TokenId)>& visit) {
  std::vector<State> states{state_};  // after so many bytes of the present entry
  size_t dead = SIZE_MAX;             // the present entries go wrong after so many bytes
  for (const TokenOrder::Entry& entry : order.entries()) {
    if (entry.shared > dead) continue;
    dead = SIZE_MAX;
    states.resize(std::min<size_t>(states.size(), entry.shared + 1));
    while (states.size() <= entry.bytes.size()) {
      State state = next(states.back(), uint8_t(entry.bytes[states.size() - 1]));
      if (state.empty()) {
        dead = states.size() - 1;
        break;
      }
      states.push_back(std::move(state));
    }
    if (dead == SIZE_MAX) visit(entry.token);
  }
}

bool GrammarMatcher::complete() const { return std::find(state_.begin(), state_.end(), 0u) != state_.end(); }
bool GrammarMatcher::only_complete() const { return state_.size() == 1 && state_[0] == 0; }

}  // namespace ef
