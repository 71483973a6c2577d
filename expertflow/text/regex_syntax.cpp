// Oniguruma to PCRE2. What differs and occurs in tokenizers: \s \w \h \b and their complements, bare script names
// (Script, not Script_Extensions), \uHHHH, nested classes and && in classes, {n,m}+ (not possessive), (?m) (dot matches
// newline).
#include <array>
#include <optional>

#include "expertflow/base/errors.h"
#include "expertflow/text/regex.h"

namespace ef {
namespace {

constexpr std::string_view kSpace = "\\t-\\r\\x{85}\\p{Z}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside a class Oniguruma's \w also takes the numeric signs of Latin-1, since its table of the first 256 characters
// says so.
constexpr std::string_view kWordOutside = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr int kMaxClassDepth = 32;

struct Property {
  std::string_view name, pcre2;
};
// Names that Oniguruma knows and PCRE2 spells otherwise (fragments for the inside of a class).
constexpr std::array kProperties = {
    Property{"Letter", "\\p{L}"},
    Property{"Mark", "\\p{M}"},
    Property{"Number", "\\p{N}"},
    Property{"Punctuation", "\\p{P}"},
    Property{"Symbol", "\\p{S}"},
    Property{"Separator", "\\p{Z}"},
    Property{"Other", "\\p{C}"},
    Property{"Alpha", "\\p{Alphabetic}"},
    Property{"Digit", "\\p{Nd}"},
    Property{"Space", kSpace},
    Property{"Word", kWord},
    Property{"Punct", "\\p{P}"},
    Property{"Upper", "\\p{Uppercase}"},
    Property{"Lower", "\\p{Lowercase}"},
    Property{"Alnum", "\\p{Alphabetic}\\p{Nd}"},
    Property{"XDigit", kHex},
    Property{"Any", "\\p{Any}"},
    Property{"Alphabetic", "\\p{Alphabetic}"},
    Property{"Uppercase", "\\p{Uppercase}"},
    Property{"Lowercase", "\\p{Lowercase}"},
    Property{"White_Space", kSpace},
    Property{"Emoji", "\\p{Emoji}"},
    Property{"Extended_Pictographic", "\\p{Extended_Pictographic}"},
    Property{"Ideographic", "\\p{Ideographic}"},
    Property{"Cntrl", "\\p{Cc}"},
};

constexpr std::array kPosix = {
    Property{"alpha", "\\p{Alphabetic}"},
    Property{"alnum", "\\p{Alphabetic}\\p{Nd}"},
    Property{"digit", "\\p{Nd}"},
    Property{"lower", "\\p{Lowercase}"},
    Property{"upper", "\\p{Uppercase}"},
    Property{"space", kSpace},
    Property{"blank", "\\t\\p{Zs}"},
    Property{"punct", "\\p{P}\\p{S}"},
    Property{"cntrl", "\\p{Cc}"},
    Property{"word", kWord},
    Property{"xdigit", kHex},
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) const {
    fail<ModelError>("{}: {} at byte {} of the regular expression '{}' is not supported", where_, what, at_, in_);
  }

  bool next_is(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void emit_atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  void step() {
    const char c = in_[at_];
    if (c == '\\') return escape();
    if (c == '[') return emit_atom(character_class(0));
    if (c == '(') return group();
    if (c == ')') {
      ++at_;
      out_ += c;
      if (!groups_.empty()) {
        atom_ = groups_.back();
        groups_.pop_back();
      }
      return;
    }
    if (c == '{') return braces();
    ++at_;
    if (c == '*' || c == '+' || c == '?' || c == '|') {
      out_ += c;
      return;
    }
    // A UTF-8 sequence is one atom: its continuation bytes follow the lead byte.
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) {
      out_ += c;
    } else {
      emit_atom(std::string_view(&c, 1));
    }
  }

  void group() {
    groups_.push_back(out_.size());
    if (!next_is("(?")) {
      out_ += '(';
      ++at_;
      return;
    }
    out_ += "(?";
    at_ += 2;
    while (at_ < in_.size() && (std::string_view("imx-").find(in_[at_]) != std::string_view::npos)) {
      out_ += in_[at_] == 'm' ? 's' : in_[at_];
      ++at_;
    }
    if (at_ < in_.size() && std::string_view(":)=!<>#").find(in_[at_]) == std::string_view::npos)
      unsupported("a group option");
  }

  // {n,m}+ repeats the repetition in Oniguruma and is possessive in PCRE2; {,m} is {0,m}.
  void braces() {
    const size_t close = in_.find('}', at_);
    const std::string_view body = close == std::string_view::npos ? "" : in_.substr(at_ + 1, close - at_ - 1);
    const bool quantifier = !body.empty() && body != "," &&
                            body.find_first_not_of("0123456789,") == std::string_view::npos &&
                            body.find(',') == body.rfind(',');
    if (!quantifier) {
      ++at_;
      return emit_atom("\\{");
    }
    at_ = close + 1;
    const std::string repetition = (body[0] == ',' ? "{0" : "{") + std::string(body) + "}";
    if (at_ < in_.size() && in_[at_] == '+') {
      out_ = out_.substr(0, atom_) + "(?:" + out_.substr(atom_) + repetition + ")";
    } else {
      out_ += repetition;
    }
  }

  std::string_view braced(std::string_view what) {  // at_ is behind the letter
    const size_t close = in_.find('}', at_);
    if (at_ >= in_.size() || in_[at_] != '{' || close == std::string_view::npos) unsupported(what);
    const std::string_view body = in_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    return body;
  }

  struct ClassPart {
    std::string positive;  // fragment for the inside of a class
    bool negated = false;  // the part means everything else
  };

  ClassPart property(bool negated) {
    std::string_view name = braced("a property without braces");
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    for (const Property& known : kProperties) {
      if (known.name == name) return {std::string(known.pcre2), negated};
    }
    const bool category = name.size() <= 2;
    return {category ? fmt::format("\\p{{{}}}", name) : fmt::format("\\p{{sc:{}}}", name), negated};
  }

  // Set escapes, common to both places; nullopt for others. at_ is at the backslash and moves behind a set escape only.
  std::optional<ClassPart> set_escape() {
    if (at_ + 1 >= in_.size()) unsupported("a trailing backslash");
    const char c = in_[at_ + 1];
    const size_t start = at_;
    at_ += 2;
    switch (c) {
      case 's':
        return ClassPart{std::string(kSpace)};
      case 'S':
        return ClassPart{std::string(kSpace), true};
      case 'w':
        return ClassPart{std::string(kWord)};
      case 'W':
        return ClassPart{std::string(kWord), true};
      case 'd':
        return ClassPart{"\\p{Nd}"};
      case 'D':
        return ClassPart{"\\p{Nd}", true};
      case 'h':
        return ClassPart{std::string(kHex)};
      case 'H':
        return ClassPart{std::string(kHex), true};
      case 'p':
        return property(false);
      case 'P':
        return property(true);
      default:
        at_ = start;
        return std::nullopt;
    }
  }

  // Escapes of one character; at_ moves behind it.
  std::string character_escape() {
    const char c = in_[at_ + 1];
    at_ += 2;
    if (c == 'u') {
      const std::string_view digits = in_.substr(at_, 4);
      if (digits.size() < 4) unsupported("\\u without four digits");
      at_ += 4;
      return fmt::format("\\x{{{}}}", digits);
    }
    if (c == 'x' && at_ < in_.size() && in_[at_] == '{') return fmt::format("\\x{{{}}}", braced("\\x"));
    return std::string("\\") + c;
  }

  void escape() {
    if (const auto set = set_escape()) {
      const std::string_view set_text = set->positive == kWord ? kWordOutside : std::string_view(set->positive);
      return emit_atom(fmt::format("[{}{}]", set->negated ? "^" : "", set_text));
    }
    const char c = in_[at_ + 1];
    if (c == 'b' || c == 'B') {
      at_ += 2;
      const std::string_view form =
          c == 'b' ? "(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))" : "(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))";
      return emit_atom(fmt::format(fmt::runtime(form), kWordOutside));
    }
    emit_atom(character_escape());
  }

  // What a class or one side of && holds: a fragment of a PCRE2 class, and sets that a fragment cannot express.
  struct ClassSet {
    std::string fragment;
    std::vector<std::string> atoms;

    std::string atom() const {
      if (atoms.empty()) return "[" + fragment + "]";
      std::string any = "(?:";
      if (!fragment.empty()) any += "[" + fragment + "]|";
      for (size_t i = 0; i < atoms.size(); ++i) any += (i == 0 ? "" : "|") + atoms[i];
      return any + ")";
    }
  };

  // A class, as a PCRE2 atom. at_ is at '[' and moves behind ']'.
  std::string character_class(int depth) {
    if (depth > kMaxClassDepth) unsupported("so deep a nesting of classes");
    ++at_;
    const bool negated = at_ < in_.size() && in_[at_] == '^';
    if (negated) ++at_;
    std::vector<ClassSet> operands(1);
    bool first = true;
    while (true) {
      if (at_ >= in_.size()) unsupported("a class without end");
      if (in_[at_] == ']' && !first) break;
      if (next_is("&&")) {
        at_ += 2;
        operands.emplace_back();
      } else {
        class_item(operands.back(), depth);
      }
      first = false;
    }
    ++at_;
    for (const ClassSet& operand : operands) {
      if (operand.fragment.empty() && operand.atoms.empty()) unsupported("an empty operand of &&");
    }
    return join_operands(operands, negated);
  }

  static std::string join_operands(const std::vector<ClassSet>& operands, bool negated) {
    if (operands.size() == 1 && operands[0].atoms.empty()) return (negated ? "[^" : "[") + operands[0].fragment + "]";
    std::string all = "(?:";
    for (size_t i = 1; i < operands.size(); ++i) all += "(?=" + operands[i].atom() + ")";
    all += operands[0].atom() + ")";
    return negated ? "(?:(?!" + all + ")[\\x{0}-\\x{10ffff}])" : all;
  }

  void class_item(ClassSet& set, int depth) {
    const char c = in_[at_];
    if (c == '[' && next_is("[:")) return posix(set);
    if (c == '[') {
      const std::string inner = character_class(depth + 1);
      const bool flat = inner[0] == '[' && inner[1] != '^';
      if (flat) {
        set.fragment.append(inner, 1, inner.size() - 2);
      } else {
        set.atoms.push_back(inner);
      }
      return;
    }
    if (c != '\\') {
      ++at_;
      set.fragment += c;
    } else if (const auto part = set_escape()) {
      add(set, part->positive, part->negated);
    } else {
      set.fragment += character_escape();
    }
  }

  static void add(ClassSet& set, const std::string& fragment, bool negated) {
    if (negated) {
      set.atoms.push_back("[^" + fragment + "]");
    } else {
      set.fragment += fragment;
    }
  }

  void posix(ClassSet& set) {
    const size_t close = in_.find(":]", at_);
    if (close == std::string_view::npos) unsupported("a POSIX class without end");
    std::string_view name = in_.substr(at_ + 2, close - at_ - 2);
    const bool negated = !name.empty() && name[0] == '^';
    if (negated) name.remove_prefix(1);
    for (const Property& known : kPosix) {
      if (known.name != name) continue;
      add(set, std::string(known.pcre2), negated);
      at_ = close + 2;
      return;
    }
    unsupported("this POSIX class");
  }

  std::string_view in_, where_;
  std::string out_;
  size_t at_ = 0;
  size_t atom_ = 0;  // where the last atom begins in out_
  std::vector<size_t> groups_;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

}  // namespace ef
