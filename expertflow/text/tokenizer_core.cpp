#include "expertflow/text/tokenizer_core.h"

#include <algorithm>
#include <unordered_map>

#include "expertflow/base/errors.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {
constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr size_t kMaxWordBytes =
    (size_t{1} << 31) - 1;  // positions inside a word are 32-bit; normalisation can grow a text
constexpr size_t kCachedWordBytes = 64;
}  // namespace

TokenizerCore::TokenizerCore(TokenizerParts parts) : parts_(std::move(parts)) {
  special_.resize(parts_.vocabulary->size());
  added_.resize(parts_.vocabulary->size());
  for (const AddedToken& token : parts_.added) {
    added_[static_cast<size_t>(token.id)] = true;
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
    if (token.normalized && parts_.normalizer) {
      normalized_.add(token, parts_.normalizer->apply(token.content, {}));
    } else {
      raw_.add(token, token.content);
    }
  }
  most_bytes_ = find_most_bytes();
}

// Every byte of the text is in a token: in an added one that is written out, or, after the normaliser and the
// pre-tokenizer, in a token of the model. So the longest token, times what the normaliser shrinks at most, is the
// bound, unless some step can drop text or fold a run of any length into one token. (Ill-formed UTF-8 only grows: three
// bytes at most become U+FFFD, which has three.)
std::optional<size_t> TokenizerCore::find_most_bytes() const {
  const auto& pre = parts_.pretokenizer;
  if (pre && pre->drops_text()) return std::nullopt;
  auto most = parts_.model->most_bytes_per_token(pre && pre->makes_byte_alphabet());
  const auto shrinks = parts_.normalizer ? parts_.normalizer->most_shrinking() : std::optional<size_t>(1);
  if (!most || !shrinks) return std::nullopt;
  *most *= *shrinks;
  for (const AddedToken& token : parts_.added) {
    if (token.lstrip || token.rstrip) return std::nullopt;  // it swallows white space
    *most = std::max(*most, token.content.size() * *shrinks);
  }
  return std::max<size_t>(*most, 1);
}

std::vector<TokenId> TokenizerCore::encode(std::string_view text, const EncodeOptions& options) const {
  EF_CHECK(text.size() < kMaxTextBytes, RequestError, "text: expected less than {} bytes, found {}", kMaxTextBytes,
           text.size());
  std::vector<TokenId> ids;
  if (options.add_special) ids = parts_.prefix;
  const std::string clean = utf8_lossy(text);
  for (const auto& section : raw_.split(clean, options.parse_special, options.stop)) {
    if (section.id) {
      ids.push_back(*section.id);
      continue;
    }
    std::string part = clean.substr(section.begin, section.end - section.begin);
    if (parts_.normalizer) part = parts_.normalizer->apply(std::move(part), options.stop);
    for (const auto& inner : normalized_.split(part, options.parse_special, options.stop)) {
      if (inner.id) {
        ids.push_back(*inner.id);
      } else {
        encode_text(std::string_view(part).substr(inner.begin, inner.end - inner.begin),
                    section.begin == 0 && inner.begin == 0, ids, options.stop);
      }
    }
  }
  if (options.add_special) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  return ids;
}

void TokenizerCore::encode_text(std::string_view text, bool at_text_start, std::vector<TokenId>& out,
                                const StopCheck& stop) const {
  if (text.empty()) return;
  EF_CHECK(text.size() <= kMaxWordBytes / 2, RequestError,
           "text: expected at most {} bytes after normalisation, found {}", kMaxWordBytes / 2, text.size());
  if (!parts_.pretokenizer) return parts_.model->encode(text, out, stop);
  PreTokenized pre{std::string(text), {{0, text.size(), at_text_start}}, stop};
  parts_.pretokenizer->apply(pre);
  std::unordered_map<std::string_view, std::pair<size_t, size_t>> seen;  // word -> its ids' range in out
  for (const auto& piece : pre.pieces) {
    stop();
    const std::string_view word = pre.view(piece);
    if (word.size() > kCachedWordBytes) {
      parts_.model->encode(word, out, stop);
      continue;
    }
    const auto [entry, fresh] = seen.try_emplace(word, out.size(), out.size());
    if (fresh) {
      parts_.model->encode(word, out, stop);
      entry->second.second = out.size();
    } else {
      for (size_t i = entry->second.first; i < entry->second.second; ++i) out.push_back(TokenId{out[i]});
    }
  }
}

DecoderToken TokenizerCore::decoder_token(TokenId id) const {
  return {parts_.vocabulary->text(id), added_[static_cast<size_t>(id)], false};
}

std::string TokenizerCore::token_to_bytes(TokenId id, bool at_start) const {
  if (!known(id)) return "";
  return parts_.decoder.decode_one(decoder_token(id), at_start);
}

std::string TokenizerCore::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::vector<DecoderToken> tokens;
  tokens.reserve(ids.size());
  for (const TokenId id : ids) {
    if (!known(id) || (skip_special && is_special(id))) continue;
    tokens.push_back(decoder_token(id));
  }
  return parts_.decoder.decode(std::move(tokens));
}

}  // namespace ef
