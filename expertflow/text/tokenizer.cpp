#include "expertflow/text/tokenizer.h"

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/text/tokenizer_core.h"

namespace ef {
namespace {

const std::string kNoText;

bool starts_with(const std::vector<TokenId>& ids, size_t at, const std::vector<TokenId>& prefix) {
  return ids.size() >= at + prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), ids.begin() + static_cast<ptrdiff_t>(at));
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerCore> core)
    : core_(std::move(core)), eog_(union_of_ids({core_->parts().eog})) {}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return core_->encode(text, options);
}
std::string Tokenizer::token_to_bytes(TokenId id, bool at_start) const { return core_->token_to_bytes(id, at_start); }
std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  return core_->decode(ids, skip_special);
}

std::optional<size_t> Tokenizer::most_bytes_per_token() const { return core_->most_bytes_per_token(); }
size_t Tokenizer::vocab_size() const { return core_->parts().vocabulary->size(); }
const std::string& Tokenizer::token_text(TokenId id) const {
  const Vocabulary& vocabulary = *core_->parts().vocabulary;
  return vocabulary.contains(id) ? vocabulary.text(id) : kNoText;
}
std::optional<TokenId> Tokenizer::find(std::string_view text) const { return core_->parts().vocabulary->find(text); }
bool Tokenizer::is_special(TokenId id) const { return core_->is_special(id); }

std::optional<TokenId> Tokenizer::bos() const { return core_->parts().bos; }
std::optional<TokenId> Tokenizer::eos() const { return core_->parts().eos; }
std::optional<TokenId> Tokenizer::unk() const { return core_->parts().unk; }
std::optional<TokenId> Tokenizer::pad() const { return core_->parts().pad; }
const std::vector<TokenId>& Tokenizer::eog() const { return eog_; }
bool Tokenizer::is_eog(TokenId id) const { return std::binary_search(eog_.begin(), eog_.end(), id); }

Tokenizer Tokenizer::with_eog(std::span<const TokenId> ids) const {
  for (const TokenId id : ids) EF_CHECK(id >= 0, ModelError, "end-of-sequence id: expected a token id, found {}", id);
  Tokenizer copy = *this;
  copy.eog_ = union_of_ids({eog_, ids});
  return copy;
}

bool Tokenizer::add_bos() const {
  const TokenizerParts& parts = core_->parts();
  return parts.bos && !parts.prefix.empty() && parts.prefix.front() == *parts.bos;
}

bool Tokenizer::add_eos() const {
  const TokenizerParts& parts = core_->parts();
  return parts.eos && !parts.suffix.empty() && parts.suffix.back() == *parts.eos;
}

void Tokenizer::ensure_one_bos(std::vector<TokenId>& ids) const {
  const std::vector<TokenId>& prefix = core_->parts().prefix;
  if (prefix.empty()) return;
  if (!starts_with(ids, 0, prefix)) {
    ids.insert(ids.begin(), prefix.begin(), prefix.end());
    return;
  }
  size_t copies = 1;
  while (starts_with(ids, copies * prefix.size(), prefix)) ++copies;
  ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>((copies - 1) * prefix.size()));
}

std::vector<TokenId> union_of_ids(std::initializer_list<std::span<const TokenId>> lists) {
  std::vector<TokenId> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<TokenId> token_ids_from_json(const nlohmann::json& value, std::string_view where) {
  const fields::Node node{value, std::string(where)};
  std::vector<TokenId> ids;
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) ids.push_back(fields::token_id(fields::element(node, i)));
  } else if (!value.is_null()) {
    ids.push_back(fields::token_id(node));
  }
  return ids;
}

}  // namespace ef
