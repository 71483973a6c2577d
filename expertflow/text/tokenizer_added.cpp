#include "expertflow/text/tokenizer_added.h"

#include <algorithm>

#include "expertflow/text/unicode.h"

namespace ef {
namespace {

size_t white_space_before(std::string_view text, size_t end) {
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    size_t at = begin;
    if (!is_white_space(utf8_next(text, at))) break;
    end = begin;
  }
  return end;
}

size_t white_space_after(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t at = begin;
    if (!is_white_space(utf8_next(text, at))) break;
    begin = at;
  }
  return begin;
}

bool word_touches(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    size_t at = begin - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (is_word(utf8_next(text, at))) return true;
  }
  return end < text.size() && is_word(utf8_next(text, end));
}

}  // namespace

void LongestMatcher::add(std::string text, size_t value) {
  if (text.empty()) return;
  auto& lengths = lengths_[static_cast<unsigned char>(text[0])];
  if (std::find(lengths.begin(), lengths.end(), text.size()) == lengths.end()) {
    lengths.insert(std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>()), text.size());
  }
  values_.emplace(std::move(text), value);
}

std::optional<LongestMatcher::Hit> LongestMatcher::at(std::string_view text, size_t position) const {
  const auto& lengths = lengths_[static_cast<unsigned char>(text[position])];
  if (lengths.empty()) return std::nullopt;
  std::string key;
  for (const size_t length : lengths) {
    if (length > text.size() - position) continue;
    key.assign(text.substr(position, length));
    const auto found = values_.find(key);
    if (found != values_.end()) return Hit{length, found->second};
  }
  return std::nullopt;
}

void AddedTokens::add(const AddedToken& token, std::string text) {
  if (!token.special) plain_.add(text, tokens_.size());
  all_.add(std::move(text), tokens_.size());
  tokens_.push_back(token);
}

std::vector<AddedTokens::Section> AddedTokens::split(std::string_view text, bool parse_special,
                                                     const StopCheck& stop) const {
  const LongestMatcher& matcher = parse_special ? all_ : plain_;
  std::vector<Section> sections;
  size_t done = 0;
  for (size_t i = 0; i < text.size() && !matcher.empty();) {
    stop();
    const auto hit = matcher.at(text, i);
    if (!hit) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[hit->value];
    size_t begin = i;
    size_t end = i + hit->length;
    i = end;
    if (token.single_word && word_touches(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(white_space_before(text, begin), done);
    if (token.rstrip) end = white_space_after(text, end);
    if (begin > done) sections.push_back({done, begin, std::nullopt});
    sections.push_back({begin, end, token.id});
    done = std::max(done, end);
  }
  if (done < text.size()) sections.push_back({done, text.size(), std::nullopt});
  return sections;
}

}  // namespace ef
