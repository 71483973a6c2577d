#include "expertflow/text/pretok.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "expertflow/text/regex.h"
#include "expertflow/text/tokenizer_pattern.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {

// From GPT-2's encoder.py, the default of ByteLevel.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
  size_t begin, end;
  bool match;
};

// Matches and what lies between them, covering the text.
std::vector<Part> cover(const std::vector<Regex::Match>& matches, size_t size) {
  std::vector<Part> parts;
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > done) parts.push_back({done, begin, false});
    parts.push_back({begin, end, true});
    done = end;
  }
  if (done < size) parts.push_back({done, size, false});
  return parts;
}

void merge_with_previous(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool previous_match = false;
  for (const Part& part : parts) {
    if (part.match && !previous_match && !merged.empty()) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
    previous_match = part.match;
  }
  parts = std::move(merged);
}

void merge_with_next(std::vector<Part>& parts) {
  std::vector<Part> merged;  // from the right
  bool previous_match = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->match && !previous_match && !merged.empty()) {
      merged.back().begin = part->begin;
    } else {
      merged.push_back(*part);
    }
    previous_match = part->match;
  }
  parts.assign(merged.rbegin(), merged.rend());
}

void merge_contiguous(std::vector<Part>& parts) {
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().match == part.match) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
  }
  parts = std::move(merged);
}

void arrange(std::vector<Part>& parts, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      break;
    case SplitBehavior::kMergedWithPrevious:
      merge_with_previous(parts);
      break;
    case SplitBehavior::kMergedWithNext:
      merge_with_next(parts);
      break;
    case SplitBehavior::kContiguous:
      merge_contiguous(parts);
      break;
  }
}

using Finder = std::function<std::vector<Regex::Match>(std::string_view, const StopCheck&)>;

// Cuts every piece at the finder's matches. Empty pieces vanish.
class Splitter final : public PreTokenizer {
 public:
  Splitter(Finder finder, SplitBehavior behavior, bool invert)
      : finder_(std::move(finder)), behavior_(behavior), invert_(invert) {}

  void apply(PreTokenized& pre) const override {
    std::vector<PreTokenized::Piece> cut;
    cut.reserve(pre.pieces.size());
    for (const auto& piece : pre.pieces) {
      pre.stop();
      std::vector<Part> parts = cover(finder_(pre.view(piece), pre.stop), piece.end - piece.begin);
      if (invert_) {
        for (Part& part : parts) part.match = !part.match;
      }
      arrange(parts, behavior_);
      for (const Part& part : parts) {
        if (part.begin == part.end) continue;
        cut.push_back({piece.begin + part.begin, piece.begin + part.end, piece.at_text_start && part.begin == 0});
      }
    }
    pre.pieces = std::move(cut);
  }
  bool drops_text() const override { return behavior_ == SplitBehavior::kRemoved; }

 private:
  Finder finder_;
  SplitBehavior behavior_;
  bool invert_;
};

// One match a character of the class, or (runs) one a run of them.
Finder find_characters(bool (*in_class)(char32_t)) {
  return [in_class](std::string_view text, const StopCheck&) {
    std::vector<Regex::Match> matches;
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      if (in_class(utf8_next(text, i))) matches.emplace_back(begin, i);
    }
    return matches;
  };
}

Finder find_pattern(Pattern pattern) {
  return [shared = std::make_shared<const Pattern>(std::move(pattern))](std::string_view text, const StopCheck& stop) {
    return shared->find_all(text, stop);
  };
}

// Rewrites every piece's text on its own.
template <class Rewrite>
void rewrite_pieces(PreTokenized& pre, const Rewrite& rewrite) {
  PreTokenized out{{}, {}, pre.stop};
  out.text.reserve(pre.text.size() * 2);
  out.pieces.reserve(pre.pieces.size());
  for (const auto& piece : pre.pieces) {
    pre.stop();
    const size_t begin = out.text.size();
    rewrite(pre.view(piece), piece.at_text_start, out.text);
    if (out.text.size() > begin) out.pieces.push_back({begin, out.text.size(), piece.at_text_start});
  }
  pre = std::move(out);
}

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, const std::string& where) : add_prefix_space_(add_prefix_space) {
    if (use_regex) {
      splitter_ = std::make_unique<Splitter>(find_pattern(Pattern(Regex(kGpt2Pattern, where))),
                                             SplitBehavior::kIsolated, false);
    }
  }
  void apply(PreTokenized& pre) const override {
    if (add_prefix_space_) {
      rewrite_pieces(pre, [](std::string_view text, bool, std::string& out) {
        if (!text.starts_with(' ')) out += ' ';
        out += text;
      });
    }
    if (splitter_) splitter_->apply(pre);
    rewrite_pieces(pre, [](std::string_view text, bool, std::string& out) {
      for (const char byte : text) utf8_append(out, byte_to_printable(static_cast<unsigned char>(byte)));
    });
  }
  bool makes_byte_alphabet() const override { return true; }

 private:
  bool add_prefix_space_;
  std::unique_ptr<Splitter> splitter_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  void apply(PreTokenized& pre) const override {
    rewrite_pieces(pre, [this](std::string_view text, bool at_text_start, std::string& out) {
      const bool prepend = scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && at_text_start);
      if (prepend && !text.starts_with(' ') && !text.starts_with(replacement_)) out += replacement_;
      for (const char c : text) {
        if (c == ' ') {
          out += replacement_;
        } else {
          out += c;
        }
      }
    });
    if (split_) splitter().apply(pre);
  }

 private:
  Splitter splitter() const {
    return Splitter(
        [this](std::string_view text, const StopCheck&) {
          std::vector<Regex::Match> matches;
          for (size_t i = text.find(replacement_); i != std::string_view::npos;
               i = text.find(replacement_, i + replacement_.size())) {
            matches.emplace_back(i, i + replacement_.size());
          }
          return matches;
        },
        SplitBehavior::kMergedWithNext, false);
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void apply(PreTokenized& pre) const override {
    for (const auto& part : parts_) part->apply(pre);
  }
  bool drops_text() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->drops_text(); });
  }
  bool makes_byte_alphabet() const override { return !parts_.empty() && parts_.back()->makes_byte_alphabet(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

SplitBehavior behavior_of(const fields::Node& node, std::string_view otherwise) {
  static constexpr std::array kNames = {
      std::pair{std::string_view("Removed"), SplitBehavior::kRemoved},
      std::pair{std::string_view("Isolated"), SplitBehavior::kIsolated},
      std::pair{std::string_view("MergedWithPrevious"), SplitBehavior::kMergedWithPrevious},
      std::pair{std::string_view("MergedWithNext"), SplitBehavior::kMergedWithNext},
      std::pair{std::string_view("Contiguous"), SplitBehavior::kContiguous},
  };
  const std::string name = fields::string_or(node, "behavior", otherwise);
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  fields::wrong(fields::member(node, "behavior"),
                "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

std::unique_ptr<PreTokenizer> make_metaspace(const fields::Node& node) {
  const std::string replacement = fields::string_or(node, "replacement", "\xE2\x96\x81");
  if (replacement.empty()) fields::wrong(fields::member(node, "replacement"), "one character");
  const bool add_prefix_space = fields::boolean_or(node, "add_prefix_space", true);
  const std::string scheme = fields::string_or(node, "prepend_scheme", add_prefix_space ? "always" : "never");
  PrependScheme value = PrependScheme::kAlways;
  if (scheme == "first") {
    value = PrependScheme::kFirst;
  } else if (scheme == "never") {
    value = PrependScheme::kNever;
  } else if (scheme != "always") {
    fields::wrong(fields::member(node, "prepend_scheme"), "always, first or never");
  }
  return std::make_unique<Metaspace>(replacement, value, fields::boolean_or(node, "split", true));
}

std::unique_ptr<PreTokenizer> make_sequence(const fields::Node& node) {
  const fields::Node list = fields::member(node, "pretokenizers");
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (size_t i = 0; i < fields::array_size(list); ++i) {
    if (auto part = make_pretokenizer(fields::element(list, i))) parts.push_back(std::move(part));
  }
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pretokenizer(const fields::Node& node) {
  if (node.value.is_null()) return nullptr;
  const std::string type = fields::type_of(node);
  if (type == "Sequence") return make_sequence(node);
  if (type == "Metaspace") return make_metaspace(node);
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(fields::boolean_or(node, "add_prefix_space", true),
                                       fields::boolean_or(node, "use_regex", true), node.where);
  }
  if (type == "Split") {
    return std::make_unique<Splitter>(find_pattern(Pattern(fields::member(node, "pattern"))), behavior_of(node, ""),
                                      fields::boolean_or(node, "invert", false));
  }
  if (type == "Digits") {
    const bool individual = fields::boolean_or(node, "individual_digits", false);
    return std::make_unique<Splitter>(find_characters(is_numeric),
                                      individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
  }
  if (type == "Punctuation") {
    return std::make_unique<Splitter>(find_characters(is_punctuation), behavior_of(node, "Isolated"), false);
  }
  if (type == "WhitespaceSplit") {
    return std::make_unique<Splitter>(find_characters(is_white_space), SplitBehavior::kRemoved, false);
  }
  if (type == "Whitespace") {  // Rust's \w+|[^\w\s]+; its \w also has the two joiners
    Regex words("[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+", node.where);
    return std::make_unique<Splitter>(find_pattern(Pattern(std::move(words))), SplitBehavior::kRemoved, true);
  }
  fields::unknown_type(node, "pre_tokenizer",
                       "Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, Sequence");
}

std::unique_ptr<PreTokenizer> make_regex_pretokenizer(const std::vector<std::string>& expressions,
                                                      std::string_view where) {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const std::string& expression : expressions) {
    parts.push_back(
        std::make_unique<Splitter>(find_pattern(Pattern(Regex(expression, where))), SplitBehavior::kIsolated, false));
  }
  parts.push_back(std::make_unique<ByteLevel>(false, false, std::string(where)));
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

}  // namespace ef
