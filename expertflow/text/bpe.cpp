#include "expertflow/text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "expertflow/base/errors.h"
#include "expertflow/text/unicode.h"

namespace ef {

void Vocabulary::place(int64_t id, size_t limit, std::string_view text, std::string_view where) {
  EF_CHECK(id >= 0 && static_cast<uint64_t>(id) < limit, ModelError,
           "{}: token '{}': expected an id from 0 to {}, found {}", where, text, limit - 1, id);
  const auto index = static_cast<size_t>(id);
  if (index >= texts_.size()) {
    texts_.resize(index + 1);
    present_.resize(index + 1);
  }
  EF_CHECK(!present_[index], ModelError, "{}: token '{}': expected an id of its own, found {}, which is the id of '{}'",
           where, text, id, texts_[index]);
  present_[index] = true;
}

void Vocabulary::add(std::string text, int64_t id, size_t limit, std::string_view where) {
  const auto known = ids_.find(text);
  EF_CHECK(known == ids_.end(), ModelError, "{}: token '{}': expected one id, found {} and {}", where, text,
           known->second, id);
  place(id, limit, text, where);
  longest_ = std::max(longest_, text.size());
  std::string& kept = texts_[static_cast<size_t>(id)];
  kept = std::move(text);
  ids_.emplace(kept, static_cast<TokenId>(id));
}

void Vocabulary::add_unnamed(int64_t id, size_t limit, std::string_view where) { place(id, limit, "", where); }

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

MergeTable::MergeTable(size_t count) : slots_(std::bit_ceil(std::max<size_t>(16, count * 2))) {}

size_t MergeTable::slot_of(uint64_t key) const {
  const uint64_t mixed = key * 0x9E3779B97F4A7C15ull;
  size_t slot = (mixed ^ mixed >> 32) & (slots_.size() - 1);
  while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void MergeTable::add(TokenId left, TokenId right, Merge merge) {
  Slot& slot = slots_[slot_of(key_of(left, right))];
  if (slot.key == kFree) {
    slot.key = key_of(left, right);
    ++used_;
  }
  slot.merge = merge;
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.key == kFree ? nullptr : &slot.merge;
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

std::optional<unsigned char> byte_of_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    unsigned digit = 16;
    if (c >= '0' && c <= '9') digit = static_cast<unsigned>(c - '0');
    if (c >= 'A' && c <= 'F') digit = static_cast<unsigned>(c - 'A') + 10;
    if (c >= 'a' && c <= 'f') digit = static_cast<unsigned>(c - 'a') + 10;
    if (digit == 16) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<unsigned char>(value);
}

Bpe::Bpe(const Vocabulary& vocabulary, const BpeOptions& options,
         const std::vector<std::pair<std::string, std::string>>& merges, std::string_view where)
    : vocabulary_(vocabulary), options_(options), merges_(merges.size()), byte_tokens_(256) {
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    joined.assign(left).append(right);
    const auto id_of = [&](const std::string& text) {
      const auto id = vocabulary.find(text);
      EF_CHECK(id.has_value(), ModelError,
               "{}[{}]: expected tokens of the vocabulary, found '{}' + '{}', of which '{}' is not one", where, rank,
               left, right, text);
      return *id;
    };
    const TokenId left_id = id_of(left);
    const TokenId right_id = id_of(right);
    merges_.add(left_id, right_id, {static_cast<uint32_t>(rank), id_of(joined)});
  }
  if (options_.byte_fallback) {
    all_bytes_ = true;
    for (int byte = 0; byte < 256; ++byte) {
      byte_tokens_[static_cast<size_t>(byte)] = vocabulary.find(byte_token(static_cast<unsigned char>(byte)));
      all_bytes_ = all_bytes_ && byte_tokens_[static_cast<size_t>(byte)].has_value();
    }
  }
}

void Bpe::initial_symbols(std::string_view word, std::vector<TokenId>& symbols, const StopCheck& stop) const {
  bool pending_unk = false;
  const auto flush = [&] {
    if (pending_unk) symbols.push_back(*options_.unk);
    pending_unk = false;
  };
  for (size_t i = 0; i < word.size();) {
    stop();
    const size_t n = std::max<size_t>(1, utf8_length(word, i));
    const std::string_view character = word.substr(i, n);
    i += n;
    if (const auto id = vocabulary_.find(character)) {
      flush();
      symbols.push_back(*id);
      continue;
    }
    if (options_.byte_fallback) {
      const bool known = all_bytes_ || std::all_of(character.begin(), character.end(), [&](char c) {
                           return byte_tokens_[static_cast<unsigned char>(c)].has_value();
                         });
      if (known) {
        flush();
        for (const char c : character) symbols.push_back(*byte_tokens_[static_cast<unsigned char>(c)]);
        continue;
      }
    }
    if (!options_.unk) continue;
    if (!options_.fuse_unk) flush();
    pending_unk = true;
  }
  flush();
}

namespace {

struct Candidate {
  uint32_t rank;
  int32_t position;  // of the left symbol
  TokenId merged;
  bool operator<(const Candidate& other) const {  // the top of the heap is the lowest rank, the leftmost of equals
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

void Bpe::merge(std::vector<TokenId>& symbols, const StopCheck& stop) const {
  const auto size = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> next(symbols.size());
  std::vector<int32_t> previous(symbols.size());
  for (int32_t i = 0; i < size; ++i) {
    next[static_cast<size_t>(i)] = i + 1 < size ? i + 1 : -1;
    previous[static_cast<size_t>(i)] = i - 1;
  }
  const auto at = [&](int32_t i) -> TokenId& { return symbols[static_cast<size_t>(i)]; };
  std::vector<Candidate> candidates;
  const auto candidate = [&](int32_t left) -> std::optional<Candidate> {
    const int32_t right = next[static_cast<size_t>(left)];
    if (right < 0) return std::nullopt;
    const MergeTable::Merge* found = merges_.find(at(left), at(right));
    if (found == nullptr) return std::nullopt;
    return Candidate{found->rank, left, found->merged};
  };
  for (int32_t i = 0; i + 1 < size; ++i) {
    stop();
    if (const auto found = candidate(i)) candidates.push_back(*found);
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(candidates));
  constexpr TokenId kGone = -1;
  while (!queue.empty()) {
    stop();
    const Candidate top = queue.top();
    queue.pop();
    if (at(top.position) == kGone) continue;
    const auto now = candidate(top.position);  // the neighbours may have changed since
    if (!now || now->merged != top.merged) continue;
    const int32_t right = next[static_cast<size_t>(top.position)];
    const int32_t after = next[static_cast<size_t>(right)];
    at(top.position) = top.merged;
    at(right) = kGone;
    next[static_cast<size_t>(top.position)] = after;
    if (after >= 0) previous[static_cast<size_t>(after)] = top.position;
    const int32_t before = previous[static_cast<size_t>(top.position)];
    if (before >= 0) {
      if (const auto found = candidate(before)) queue.push(*found);
    }
    if (const auto found = candidate(top.position)) queue.push(*found);
  }
  std::erase(symbols, kGone);
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& out, const StopCheck& stop) const {
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.find(word)) {
      out.push_back(*id);
      return;
    }
  }
  std::vector<TokenId> symbols;
  symbols.reserve(word.size());
  initial_symbols(word, symbols, stop);
  if (symbols.size() > 1) merge(symbols, stop);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

std::optional<size_t> Bpe::most_bytes_per_token(bool byte_alphabet) const {
  constexpr size_t kCharacter = 4;  // bytes of the longest
  size_t longest = std::max(vocabulary_.longest(), kCharacter);
  const bool none_dropped = options_.unk ? !options_.fuse_unk : options_.byte_fallback && all_bytes_;
  if (!byte_alphabet) return none_dropped ? std::optional(longest) : std::nullopt;
  for (int byte = 0; byte < 256 && !none_dropped; ++byte) {
    std::string character;
    utf8_append(character, byte_to_printable(static_cast<unsigned char>(byte)));
    if (!vocabulary_.find(character)) return std::nullopt;
  }
  longest = 1;  // a character of that alphabet is one byte of the text
  for (size_t id = 0; id < vocabulary_.size(); ++id) {
    if (!vocabulary_.contains(static_cast<TokenId>(id))) continue;
    const std::string& text = vocabulary_.text(static_cast<TokenId>(id));
    const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
    longest = std::max(longest, static_cast<size_t>(std::count_if(text.begin(), text.end(), begins)));
  }
  return longest;
}

}  // namespace ef
