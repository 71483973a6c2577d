// Filters over one value: text, numbers, JSON. Those over sequences are in jinja_filters_list.cpp.
#include "expertflow/text/jinja_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

constexpr int64_t kMaxIndent = 1000;

template <std::string (*kConvert)(std::string_view)>
Value convert(Runtime& rt, const Value& v, Args& args) {
  bind(args, "filter", {});
  const std::string s = rt.string(v);
  return rt.text(kConvert(s));
}

/// Jinja's title: upper case after spaces, hyphens and opening brackets alone.
std::string title(std::string_view text) {
  std::string out;
  bool start = true;
  for (size_t i = 0; i < text.size();) {
    const size_t n = char_length(text, i);
    const int32_t c = code_point(text, i);
    const std::string_view piece = text.substr(i, n);
    out += start ? to_upper(piece) : to_lower(piece);
    start = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    i += n;
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string url_quote(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
        std::string_view("_.-~/").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", uint8_t(c));
    }
  }
  return out;
}

Value trim(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "trim", {"chars"});
  const std::string s = rt.string(v);
  const bool spaces = bound[0] == nullptr || bound[0]->is(Type::kNone);
  if (!spaces) rt.work(s.size() * (string_argument(*bound[0], "trim").size() + 1));
  return rt.text(std::string(strip(s, true, true, spaces ? nullptr : &bound[0]->as_string())));
}

Value replace(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "replace", {"old", "new", "count"}, 2);
  const std::string s = rt.string(v);
  const std::string from = rt.string(*bound[0]);
  const std::string to = rt.string(*bound[1]);
  const bool all = bound[2] == nullptr || bound[2]->is(Type::kNone) || int_argument(bound[2], 0, "replace") < 0;
  int64_t left = all ? INT64_MAX : bound[2]->as_int();
  rt.work(s.size() + s.size() / 1024 * from.size());
  std::string out;
  size_t pos = 0;
  while (left > 0 && pos <= s.size()) {
    const size_t hit = from.empty() ? pos : s.find(from, pos);
    if (hit == std::string::npos) break;
    rt.charge(hit - pos + to.size());
    out.append(s, pos, hit - pos);
    out += to;
    pos = hit + from.size();
    --left;
    if (!from.empty()) continue;
    if (pos == s.size()) return rt.text(std::move(out));
    const size_t n = char_length(s, pos);
    out.append(s, pos, n);
    pos += n;
  }
  if (pos < s.size()) out.append(s, pos);
  return rt.text(std::move(out));
}

std::vector<std::string> split_lines(const std::string& s) {
  Args none;
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\n' && s[i] != '\r') continue;
    lines.push_back(s.substr(begin, i - begin));
    if (s[i] == '\r' && i + 1 < s.size() && s[i + 1] == '\n') ++i;
    begin = i + 1;
  }
  if (begin < s.size()) lines.push_back(s.substr(begin));
  return lines;
}

Value indent(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "indent", {"width", "first", "blank"});
  std::string prefix;
  if (bound[0] != nullptr && bound[0]->is(Type::kString)) {
    prefix = bound[0]->as_string();
  } else {
    const int64_t width = int_argument(bound[0], 4, "indent");
    EF_CHECK(width <= kMaxIndent, RequestError, "chat template: indent: at most {}, found {}", kMaxIndent, width);
    prefix.assign(size_t(std::max<int64_t>(width, 0)), ' ');
  }
  const bool first = bound[1] != nullptr && bound[1]->truthy();
  const bool blank = bound[2] != nullptr && bound[2]->truthy();
  const auto lines = split_lines(rt.string(v) + "\n");
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i == 0 ? first : (blank || !lines[i].empty())) {
      rt.charge(prefix.size());
      out += prefix;
    }
    out += lines[i];
  }
  return rt.text(std::move(out));
}

Value center(Runtime& rt, const Value& v, Args& args) {
  const int64_t width = int_argument(bind(args, "center", {"width"})[0], 80, "center");
  const Value s = rt.text(rt.string(v));
  const int64_t missing = std::max<int64_t>(0, width - rt.length(s));
  EF_CHECK(missing <= kMaxValueWeight, RequestError, "chat template: a value is larger than {} bytes", kMaxValueWeight);
  rt.charge(size_t(missing));
  // Python puts the odd space to the left where the width is odd.
  const int64_t left = missing / 2 + (missing & width & 1);
  return rt.text(std::string(size_t(left), ' ') + s.as_string() + std::string(size_t(missing - left), ' '));
}

Value truncate(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "truncate", {"length", "killwords", "end", "leeway"});
  const int64_t length = int_argument(bound[0], 255, "truncate");
  const bool kill = bound[1] != nullptr && bound[1]->truthy();
  const std::string end = bound[2] == nullptr ? "..." : rt.string(*bound[2]);
  const int64_t leeway = int_argument(bound[3], 5, "truncate");
  const std::string s = rt.string(v);
  const auto offsets = char_offsets(s);
  const int64_t n = int64_t(offsets.size()) - 1;
  if (n - leeway <= length) return rt.text(s);
  const int64_t keep = length - int64_t(count_chars(end));
  EF_CHECK(keep >= 0 && keep <= n, RequestError, "chat template: truncate: expected length >= {}, got {}",
           count_chars(end), length);
  std::string out = s.substr(0, offsets[size_t(keep)]);
  if (!kill) {
    const size_t space = out.rfind(' ');
    if (space != std::string::npos) out.resize(space);
  }
  return rt.text(out + end);
}

Value wordcount(Runtime& rt, const Value& v, Args&) {
  const std::string s = rt.string(v);
  int64_t n = 0;
  bool in_word = false;
  for (size_t i = 0; i < s.size(); i += char_length(s, i)) {
    const int32_t c = code_point(s, i);
    const bool word = is_alpha(c) || is_digit(c) || c == '_';
    n += word && !in_word ? 1 : 0;
    in_word = word;
  }
  return n;
}

Value string_filter(Runtime& rt, const Value& v, Args&) { return v.is(Type::kString) ? v : rt.text(rt.string(v)); }
Value safe(Runtime&, const Value& v, Args&) { return v; }

Value default_filter(Runtime&, const Value& v, Args& args) {
  const auto bound = bind(args, "default", {"default_value", "boolean"});
  const bool boolean = bound[1] != nullptr && bound[1]->truthy();
  if (!v.is(Type::kUndefined) && !(boolean && !v.truthy())) return v;
  return bound[0] == nullptr ? Value(std::string()) : *bound[0];
}

void refuse_undefined(const Value& v) {
  if (v.is(Type::kUndefined)) fail<RequestError>("chat template: {}", v.undefined_why());
}

/// The text as Python's int() and float() read it: spaces around and underscores between digits are allowed.
bool parse_float(std::string_view text, double& out) {
  std::string s(strip(text, true, true));
  std::erase(s, '_');
  const char* begin = s.c_str() + (s.starts_with("+") ? 1 : 0);
  const char* end = s.c_str() + s.size();
  if (begin == end || s.find_first_of("xX(") != std::string::npos) return false;
  const auto result = std::from_chars(begin, end, out);
  return result.ec == std::errc() && result.ptr == end;
}

bool parse_int(std::string_view text, int base, int64_t& out) {
  std::string s = to_lower(strip(text, true, true));
  std::erase(s, '_');
  const bool negative = s.starts_with("-");
  if (negative || s.starts_with("+")) s.erase(0, 1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && s.starts_with(prefix)) s.erase(0, 2);
  if (s.empty() || s[0] == '-' || base < 2 || base > 36) return false;
  const auto result = std::from_chars(s.data(), s.data() + s.size(), out, base);
  if (result.ec != std::errc() || result.ptr != s.data() + s.size()) return false;
  if (negative) out = -out;
  return true;
}

bool to_int(double d, int64_t& out) {
  if (!(std::abs(d) < 9.2e18)) return false;
  out = int64_t(d);
  return true;
}

Value int_filter(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "int", {"default", "base"});
  refuse_undefined(v);
  int64_t i = 0;
  if (v.is_integral()) return v.as_int();
  if (v.is(Type::kFloat) && to_int(v.as_double(), i)) return i;
  if (v.is(Type::kString)) {
    rt.work(v.as_string().size());
    if (parse_int(v.as_string(), int(int_argument(bound[1], 10, "int")), i)) return i;
    double d = 0;
    if (parse_float(v.as_string(), d) && to_int(d, i)) return i;
  }
  return bound[0] == nullptr ? Value(int64_t(0)) : *bound[0];
}

Value float_filter(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "float", {"default"});
  refuse_undefined(v);
  if (v.is_number()) return v.as_double();
  double d = 0;
  if (v.is(Type::kString)) {
    rt.work(v.as_string().size());
    if (parse_float(v.as_string(), d)) return d;
  }
  return bound[0] == nullptr ? Value(0.0) : *bound[0];
}

Value abs_filter(Runtime& rt, const Value& v, Args&) {
  refuse_undefined(v);
  EF_CHECK(v.is_number(), RequestError, "chat template: bad operand type for abs(): '{}'", v.type_name());
  const bool below = v.as_double() < 0 || (v.is(Type::kFloat) && std::signbit(v.as_double()));
  return rt.negative(v, below);
}

Value round_filter(Runtime&, const Value& v, Args& args) {
  const auto bound = bind(args, "round", {"precision", "method"});
  refuse_undefined(v);
  EF_CHECK(v.is_number(), RequestError, "chat template: round: expected a number, found {}", v.type_name());
  const int64_t precision = int_argument(bound[0], 0, "round");
  const std::string method = bound[1] == nullptr ? "common" : string_argument(*bound[1], "round");
  EF_CHECK(method == "common" || method == "ceil" || method == "floor", RequestError,
           "chat template: round: method must be common, ceil or floor");
  EF_CHECK(precision >= 0 && precision <= 300, RequestError,
           "chat template: round: precision must be 0 to 300, found {}", precision);
  const double d = v.as_double();
  if (method != "common") {
    const double scale = std::pow(10.0, double(precision));
    return (method == "ceil" ? std::ceil(d * scale) : std::floor(d * scale)) / scale;
  }
  if (v.is_integral()) return v.as_int();
  if (!std::isfinite(d)) return d;
  const std::string text = fmt::format("{:.{}f}", d, int(precision));
  double rounded = 0;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return rounded;
}

Value tojson(Runtime& rt, const Value& v, Args& args) {
  // The function that Hugging Face puts in place of Jinja's: no HTML escapes, no ASCII escapes.
  const auto bound = bind(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = bound[0] != nullptr && bound[0]->truthy();
  style.sort_keys = bound[3] != nullptr && bound[3]->truthy();
  if (bound[1] != nullptr && !bound[1]->is(Type::kNone)) {
    style.indent = 0;
    style.item_separator = ",";
    if (bound[1]->is(Type::kString)) {
      style.indent_text = bound[1]->as_string();
    } else {
      const int64_t width = int_argument(bound[1], 0, "tojson");
      EF_CHECK(width <= kMaxIndent, RequestError, "chat template: tojson: indent at most {}, found {}", kMaxIndent,
               width);
      style.indent_text.assign(size_t(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (bound[2] != nullptr && !bound[2]->is(Type::kNone)) {
    const auto separators = rt.iterate(*bound[2]);
    EF_CHECK(separators->items.size() == 2, RequestError, "chat template: tojson: separators must be two strings");
    style.item_separator = string_argument(separators->items[0], "tojson");
    style.key_separator = string_argument(separators->items[1], "tojson");
  }
  return rt.text(rt.json(v, style));
}

Value format(Runtime& rt, const Value& v, Args& args) {
  EF_CHECK(args.keyword.empty(), RequestError, "chat template: format: named values are not supported");
  const Value values = rt.list(std::move(args.positional), ListKind::kTuple);
  return rt.text(percent_format(rt, rt.string(v), values));
}

Value attr(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "attr", {"name"}, 1);
  const std::string name = rt.string(*bound[0]);
  if (v.is(Type::kDict) && find_method(v, name) == nullptr)
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  return rt.attribute(v, name);
}

const FilterRow kFilters[] = {
    {"upper", convert<to_upper>},
    {"lower", convert<to_lower>},
    {"capitalize", convert<capitalize>},
    {"title", convert<title>},
    {"escape", convert<escape_html>},
    {"e", convert<escape_html>},
    {"forceescape", convert<escape_html>},
    {"urlencode", convert<url_quote>},
    {"trim", trim},
    {"replace", replace},
    {"indent", indent},
    {"center", center},
    {"truncate", truncate},
    {"wordcount", wordcount},
    {"string", string_filter},
    {"safe", safe},
    {"default", default_filter},
    {"d", default_filter},
    {"int", int_filter},
    {"float", float_filter},
    {"abs", abs_filter},
    {"round", round_filter},
    {"tojson", tojson},
    {"format", format},
    {"attr", attr},
};

/// One conversion of a format string: %[flags][width][.precision]letter.
struct Conversion {
  std::string flags;
  int width = 0;
  int precision = -1;
  char letter = 0;
};

std::string pad(const Conversion& c, std::string text, bool numeric) {
  const int64_t missing = int64_t(c.width) - int64_t(count_chars(text));
  if (missing <= 0) return text;
  if (c.flags.find('-') != std::string::npos) return text + std::string(size_t(missing), ' ');
  if (numeric && c.flags.find('0') != std::string::npos) {
    const size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
    return text.insert(sign, std::string(size_t(missing), '0'));
  }
  return std::string(size_t(missing), ' ') + text;
}

std::string convert_one(Runtime& rt, const Conversion& c, const Value& v) {
  if (c.letter == 's' || c.letter == 'r') {
    std::string text;
    if (c.letter == 'r') {
      rt.charge(size_t(v.weight()));
      append_repr(text, v);
    } else {
      text = rt.string(v);
    }
    const auto offsets = char_offsets(text);
    if (c.precision >= 0 && size_t(c.precision) + 1 < offsets.size()) text.resize(offsets[size_t(c.precision)]);
    return pad(c, std::move(text), false);
  }
  EF_CHECK(v.is_number(), RequestError, "chat template: format: %{} needs a number, found {}", c.letter, v.type_name());
  std::string text;
  int64_t i = 0;
  switch (c.letter) {
    case 'd':
    case 'i':
    case 'x':
    case 'X':
      if (v.is_integral()) {
        i = v.as_int();
      } else {
        EF_CHECK(c.letter != 'x' && c.letter != 'X' && to_int(v.as_double(), i), RequestError,
                 "chat template: format: %{} needs an integer", c.letter);
      }
      text = c.letter == 'x' ? fmt::format("{:x}", i) : c.letter == 'X' ? fmt::format("{:X}", i) : fmt::format("{}", i);
      break;
    case 'f':
    case 'F':
      text = fmt::format("{:.{}f}", v.as_double(), c.precision < 0 ? 6 : c.precision);
      break;
    case 'e':
      text = fmt::format("{:.{}e}", v.as_double(), c.precision < 0 ? 6 : c.precision);
      break;
    case 'g':
      text = fmt::format("{:.{}g}", v.as_double(), c.precision < 0 ? 6 : c.precision);
      break;
    default:
      fail<RequestError>("chat template: format: unsupported conversion '%{}'", c.letter);
  }
  if (c.flags.find('+') != std::string::npos && text[0] != '-') text.insert(0, "+");
  return pad(c, std::move(text), true);
}

}  // namespace

FilterFunction find_filter(std::string_view name) {
  for (const FilterRow& row : kFilters) {
    if (row.name == name) return row.function;
  }
  return find_list_filter(name);
}

std::string percent_format(Runtime& rt, std::string_view format, const Value& values) {
  const bool is_tuple = values.is(Type::kList) && values.as_list().kind == ListKind::kTuple;
  const std::vector<Value> one = {values};
  const std::vector<Value>& items = is_tuple ? values.as_list().items : one;
  const auto end_of = [&](size_t pos, std::string_view set) {
    const size_t found = format.find_first_not_of(set, pos);
    return found == std::string_view::npos ? format.size() : found;
  };
  const auto number = [&](size_t& pos) {
    const size_t end = end_of(pos, "0123456789");
    const std::string digits(format.substr(pos, end - pos));
    pos = end;
    EF_CHECK(digits.size() <= 3, RequestError, "chat template: format: a width or precision of {} is too large",
             digits);
    return digits.empty() ? 0 : std::stoi(digits);
  };
  std::string out;
  size_t used = 0;
  for (size_t pos = 0; pos < format.size(); ++pos) {
    if (format[pos] != '%') {
      out += format[pos];
      continue;
    }
    Conversion c;
    const size_t flags_end = end_of(++pos, "-+ 0#");
    c.flags = std::string(format.substr(pos, flags_end - pos));
    pos = flags_end;
    c.width = number(pos);
    if (pos < format.size() && format[pos] == '.') c.precision = number(++pos);
    EF_CHECK(pos < format.size(), RequestError, "chat template: format: incomplete format");
    c.letter = format[pos];
    rt.step();
    if (c.letter == '%') {
      out += '%';
      continue;
    }
    EF_CHECK(used < items.size(), RequestError, "chat template: format: not enough arguments for format string");
    out += convert_one(rt, c, items[used++]);
  }
  EF_CHECK(used == items.size() || values.is(Type::kDict), RequestError,
           "chat template: format: not all arguments converted during string formatting");
  return out;
}

}  // namespace ef::jinja
