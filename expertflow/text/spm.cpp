#include "expertflow/text/spm.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {
constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581
constexpr double kUnknownPenalty = 10.0;                   // SentencePiece's kUnkPenalty
}  // namespace

SpmNormalizer::SpmNormalizer(const SpmModel& model, std::string_view name)
    : add_dummy_prefix_(model.add_dummy_prefix),
      remove_extra_(model.remove_extra_whitespaces),
      escape_(model.escape_whitespaces) {
  if (!model.charsmap.empty()) map_ = std::make_unique<CharsMap>(model.charsmap, name);
  for (const SpmPiece& piece : model.pieces) {
    if (piece.type == PieceType::kUserDefined) user_defined_.add(piece.text, 0);
  }
}

std::optional<size_t> SpmNormalizer::most_shrinking() const {
  return map_ || remove_extra_ ? std::nullopt : std::optional<size_t>(1);
}

std::string SpmNormalizer::apply(std::string text, const StopCheck& stop) const {
  const std::string_view space = escape_ ? kSpaceSymbol : " ";
  const auto next = [&](std::string_view rest) -> CharsMap::Step {
    if (const auto hit = user_defined_.at(rest, 0)) return {rest.substr(0, hit->length), hit->length};
    if (map_) return map_->next(rest);
    const size_t n = std::max<size_t>(1, utf8_length(rest, 0));
    return {rest.substr(0, n), n};
  };
  std::string_view rest = text;
  while (remove_extra_ && !rest.empty()) {
    stop();
    const auto step = next(rest);
    if (step.text != " ") break;
    rest.remove_prefix(step.consumed);
  }
  std::string out;
  if (rest.empty()) return out;
  out.reserve(rest.size() + rest.size() / 2);
  if (add_dummy_prefix_) out += space;
  bool after_space = remove_extra_;
  while (!rest.empty()) {
    stop();
    const auto step = next(rest);
    std::string_view piece = step.text;
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    for (const char c : piece) {
      if (c == ' ') {
        out += space;
      } else {
        out += c;
      }
    }
    if (!piece.empty()) after_space = remove_extra_ && piece.ends_with(' ');
    rest.remove_prefix(step.consumed);
  }
  while (remove_extra_ && out.ends_with(space)) out.resize(out.size() - space.size());
  return out;
}

SpmVocabulary::SpmVocabulary(const SpmModel& model, std::string_view name) {
  float low = std::numeric_limits<float>::max();
  float high = std::numeric_limits<float>::min();  // SentencePiece's start, a tiny positive number
  if (model.byte_fallback) bytes_.assign(256, -1);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SpmPiece& piece = model.pieces[i];
    EF_CHECK(piece.score == piece.score, ModelError, "{}: token {}: expected a score, found NaN", name, i);
    const auto id = static_cast<TokenId>(i);
    if (piece.type == PieceType::kByte && model.byte_fallback) {
      const auto byte = byte_of_token(piece.text);
      EF_CHECK(byte.has_value(), ModelError, "{}: token {}: expected a byte such as <0x0A>, found '{}'", name, i,
               piece.text);
      bytes_[*byte] = id;
    }
    if (piece.type == PieceType::kNormal) {
      low = std::min(low, piece.score);
      high = std::max(high, piece.score);
    }
    if (piece.type == PieceType::kUserDefined) user_defined.add(piece.text, i);
    const bool by_text =
        piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined || piece.type == PieceType::kUnused;
    if (!by_text) continue;
    longest_ = std::max(longest_, piece.text.size());
    entries_.emplace(piece.text, Entry{id, piece.score, piece.type});
  }
  min_score = low;
  max_score = high;
  for (size_t byte = 0; byte < bytes_.size(); ++byte) {
    EF_CHECK(bytes_[byte] >= 0, ModelError, "{}: byte fallback: expected a token for every byte, found none for {}",
             name, byte_token(static_cast<unsigned char>(byte)));
  }
  unk_ = static_cast<TokenId>(model.unk_id);
}

const SpmVocabulary::Entry* SpmVocabulary::find(std::string_view text) const {
  if (text.size() > longest_) return nullptr;
  const auto found = entries_.find(std::string(text));
  return found == entries_.end() ? nullptr : &found->second;
}

void SpmVocabulary::append_unknown(std::string_view piece, bool& previous_unknown, std::vector<TokenId>& out) const {
  if (!bytes_.empty()) {
    for (const char c : piece) out.push_back(bytes_[static_cast<unsigned char>(c)]);
    return;
  }
  if (!previous_unknown && unk_ >= 0) out.push_back(unk_);
  previous_unknown = true;
}

namespace {

struct Symbol {
  int32_t begin, size;  // of the text; size 0: merged into its left neighbour
  int32_t previous, next;
  bool frozen;  // a user-defined piece
};

struct Pair {
  float score;
  int32_t left, right, size;
  bool operator<(const Pair& other) const {  // the top of the heap is the highest score, the leftmost of equals
    return score != other.score ? score < other.score : left > other.left;
  }
};

class SpmMerger {
 public:
  SpmMerger(const SpmVocabulary& vocabulary, std::string_view text, const StopCheck& stop)
      : vocabulary_(vocabulary), text_(text), stop_(stop) {
    for (size_t i = 0; i < text.size();) {
      stop_();
      const auto hit = vocabulary.user_defined.at(text, i);
      const size_t n = hit ? hit->length : std::max<size_t>(1, utf8_length(text, i));
      const auto index = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(n), index - 1, index + 1, hit.has_value()});
      i += n;
    }
    if (!symbols_.empty()) symbols_.back().next = -1;
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols_.size()); ++i) consider(i, i + 1);
  }

  void run() {
    while (!queue_.empty()) {
      stop_();
      const Pair top = queue_.top();
      queue_.pop();
      Symbol& left = at(top.left);
      Symbol& right = at(top.right);
      if (left.size == 0 || right.size == 0 || left.size + right.size != top.size) continue;  // stale
      left.size += right.size;
      right.size = 0;
      left.next = right.next;
      if (right.next >= 0) at(right.next).previous = top.left;
      consider(left.previous, top.left);
      consider(top.left, left.next);
    }
  }

  void emit(std::vector<TokenId>& out) const {
    bool unknown = false;
    for (int32_t i = symbols_.empty() ? -1 : 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next) {
      const Symbol& symbol = symbols_[static_cast<size_t>(i)];
      resegment(text_.substr(static_cast<size_t>(symbol.begin), static_cast<size_t>(symbol.size)), unknown, out);
    }
  }

 private:
  Symbol& at(int32_t i) { return symbols_[static_cast<size_t>(i)]; }

  void consider(int32_t left, int32_t right) {
    if (left < 0 || right < 0 || at(left).frozen || at(right).frozen) return;
    const int32_t size = at(left).size + at(right).size;
    const std::string_view joined = text_.substr(static_cast<size_t>(at(left).begin), static_cast<size_t>(size));
    const auto* entry = vocabulary_.find(joined);
    if (entry == nullptr) return;
    queue_.push({entry->score, left, right, size});
    // An unused piece helps to merge but is taken apart again where it remains.
    if (entry->type == PieceType::kUnused) splits_.insert_or_assign(joined, static_cast<size_t>(at(left).size));
  }

  void resegment(std::string_view piece, bool& unknown, std::vector<TokenId>& out) const {
    const auto* entry = vocabulary_.find(piece);
    if (entry == nullptr) return vocabulary_.append_unknown(piece, unknown, out);
    const auto split = entry->type == PieceType::kUnused ? splits_.find(piece) : splits_.end();
    if (split != splits_.end()) {
      resegment(piece.substr(0, split->second), unknown, out);
      resegment(piece.substr(split->second), unknown, out);
      return;
    }
    unknown = false;
    out.push_back(entry->id);
  }

  const SpmVocabulary& vocabulary_;
  std::string_view text_;
  const StopCheck& stop_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Pair> queue_;
  std::unordered_map<std::string_view, size_t> splits_;
};

}  // namespace

void SpmBpe::encode(std::string_view text, std::vector<TokenId>& out, const StopCheck& stop) const {
  SpmMerger merger(*vocabulary_, text, stop);
  merger.run();
  merger.emit(out);
}

void SpmUnigram::encode(std::string_view text, std::vector<TokenId>& out, const StopCheck& stop) const {
  struct Best {
    float score = 0;
    size_t begin = std::string_view::npos;
    const SpmVocabulary::Entry* entry = nullptr;
  };
  const SpmVocabulary& vocabulary = *vocabulary_;
  const double unknown_score = static_cast<double>(vocabulary.min_score) - kUnknownPenalty;
  std::vector<Best> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t end, double score, const SpmVocabulary::Entry* entry) {
    const auto total = static_cast<double>(best[begin].score) + score;
    Best& target = best[end];
    if (target.begin == std::string_view::npos || total > static_cast<double>(target.score)) {
      target = {static_cast<float>(total), begin, entry};
    }
  };
  for (size_t begin = 0; begin < text.size();) {
    stop();
    const size_t character = std::max<size_t>(1, utf8_length(text, begin));
    bool single = false;
    for (size_t end = begin + character; end <= text.size() && end - begin <= vocabulary.longest();) {
      const auto* entry = vocabulary.find(text.substr(begin, end - begin));
      if (entry != nullptr && entry->type != PieceType::kUnused) {
        const bool user_defined = entry->type == PieceType::kUserDefined;
        const double score = user_defined
                                 ? static_cast<double>(end - begin) * static_cast<double>(vocabulary.max_score) - 0.1
                                 : static_cast<double>(entry->score);
        offer(begin, end, score, entry);
        single = single || end - begin == character;
      }
      if (end == text.size()) break;
      end += std::max<size_t>(1, utf8_length(text, end));
    }
    if (!single) offer(begin, begin + character, unknown_score, nullptr);
    begin += character;
  }
  std::vector<size_t> ends;
  for (size_t end = text.size(); end > 0; end = best[end].begin) ends.push_back(end);
  bool unknown = false;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Best& step = best[*end];
    if (step.entry == nullptr) {
      vocabulary.append_unknown(text.substr(step.begin, *end - step.begin), unknown, out);
    } else {
      unknown = false;
      out.push_back(step.entry->id);
    }
  }
}

TokenizerParts make_sentencepiece_parts(SpmModel model, std::string_view name, bool user_defined_splits) {
  TokenizerParts parts;
  const std::string where(name);
  const size_t limit = Vocabulary::limit_for(model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    SpmPiece& piece = model.pieces[i];
    parts.vocabulary->add(piece.text, static_cast<int64_t>(i), limit, where);
    const bool special = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    const bool splits = user_defined_splits && piece.type == PieceType::kUserDefined;
    if (!special && !splits) continue;
    AddedToken token;
    token.id = static_cast<TokenId>(i);
    token.content = piece.text;
    token.special = special;
    add_added_token(parts, std::move(token), limit, where);
    if (splits) piece.type = PieceType::kControl;  // cut out before the model sees the text
  }
  parts.normalizer = std::make_unique<SpmNormalizer>(model, name);
  auto vocabulary = std::make_shared<const SpmVocabulary>(model, name);
  if (model.kind == SpmModel::Kind::kBpe) {
    parts.model = std::make_unique<SpmBpe>(std::move(vocabulary));
  } else {
    parts.model = std::make_unique<SpmUnigram>(std::move(vocabulary));
  }
  using nlohmann::json;
  json steps = json::array();
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}});
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (model.add_dummy_prefix) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const json decoder = {{"type", "Sequence"}, {"decoders", steps}};
  parts.decoder = Decoder(fields::Node{decoder, where});
  return parts;
}

Tokenizer load_sentencepiece_bytes(std::string_view bytes, const nlohmann::json& config, std::string_view name) {
  SpmModel model = parse_sentencepiece_model(bytes, name);
  const auto id_of = [](int64_t id) {
    return id < 0 ? std::nullopt : std::optional<TokenId>(static_cast<TokenId>(id));
  };
  const auto unk = id_of(model.unk_id);
  const auto bos = id_of(model.bos_id);
  const auto eos = id_of(model.eos_id);
  const auto pad = id_of(model.pad_id);
  TokenizerParts parts = make_sentencepiece_parts(std::move(model), name, false);
  parts.unk = unk;
  parts.bos = bos;
  parts.eos = eos;
  parts.pad = pad;
  if (bos) parts.prefix = {*bos};  // as the families with a .model alone do
  if (eos) parts.eog = {*eos};
  apply_added_tokens_decoder(parts, {config, "tokenizer_config.json:"});
  apply_tokenizer_config(parts, {config, "tokenizer_config.json:"});
  return Tokenizer(std::make_shared<TokenizerCore>(std::move(parts)));
}

Tokenizer load_sentencepiece_model(const std::filesystem::path& path, const nlohmann::json& config) {
  return load_sentencepiece_bytes(read_text_file(path), config, path.string());
}

}  // namespace ef
