// The methods of str, dict, list and tuple that Hugging Face's sandbox allows: those that change nothing.
#include <algorithm>

#include "expertflow/text/jinja_runtime.h"
#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

constexpr int64_t kAll = -1;

const std::string& str(const Value& v) { return v.as_string(); }

Value strip_method(Runtime& rt, const Value& self, Args& args, std::string_view name, bool left, bool right) {
  const auto bound = bind(args, name, {"chars"});
  const bool spaces = bound[0] == nullptr || bound[0]->is(Type::kNone);
  const std::string* chars = spaces ? nullptr : &string_argument(*bound[0], name);
  rt.work(str(self).size() * (chars == nullptr ? 1 : chars->size() + 1));
  return rt.text(std::string(strip(str(self), left, right, chars)));
}
Value strip_both(Runtime& rt, const Value& self, Args& args) {
  return strip_method(rt, self, args, "strip", true, true);
}
Value strip_left(Runtime& rt, const Value& self, Args& args) {
  return strip_method(rt, self, args, "lstrip", true, false);
}
Value strip_right(Runtime& rt, const Value& self, Args& args) {
  return strip_method(rt, self, args, "rstrip", false, true);
}

std::vector<std::string> split_spaces(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t i = 0; i < text.size();) {
    const size_t n = char_length(text, i);
    if (!is_space(code_point(text, i))) {
      if (words.empty() || words.back().second != i) words.emplace_back(i, i);
      words.back().second = i + n;
    }
    i += n;
  }
  // Past the limit the rest stays as it is, with the spaces at its far end.
  if (limit >= 0 && words.size() > size_t(limit)) {
    if (from_right) {
      const size_t rest = words.size() - size_t(limit);
      words.erase(words.begin(), words.begin() + std::ptrdiff_t(rest) - 1);
      words.front().first = 0;
    } else {
      words.resize(size_t(limit) + 1);
      words.back().second = text.size();
    }
  }
  std::vector<std::string> parts;
  for (const auto& [begin, end] : words) parts.emplace_back(text.substr(begin, end - begin));
  return parts;
}

std::vector<std::string> split_at(std::string_view text, const std::string& separator, int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  while (limit < 0 || int64_t(parts.size()) < limit) {
    const size_t pos = from_right ? text.rfind(separator) : text.find(separator);
    if (pos == std::string_view::npos) break;
    parts.emplace_back(from_right ? text.substr(pos + separator.size()) : text.substr(0, pos));
    text = from_right ? text.substr(0, pos) : text.substr(pos + separator.size());
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value texts(Runtime& rt, const std::vector<std::string>& parts, ListKind kind = ListKind::kList) {
  std::vector<Value> items;
  for (const std::string& part : parts) items.push_back(rt.text(part));
  return rt.list(std::move(items), kind);
}

Value split_method(Runtime& rt, const Value& self, Args& args, std::string_view name, bool from_right) {
  const auto bound = bind(args, name, {"sep", "maxsplit"});
  const int64_t limit = int_argument(bound[1], kAll, name);
  rt.work(str(self).size());
  // The pieces copy the text once; a piece costs a value even where it is empty.
  rt.charge(str(self).size());
  if (bound[0] == nullptr || bound[0]->is(Type::kNone)) {
    return texts(rt, split_spaces(str(self), limit, from_right));
  }
  const std::string& separator = string_argument(*bound[0], name);
  EF_CHECK(!separator.empty(), RequestError, "chat template: empty separator");
  rt.charge(str(self).size() / separator.size() * sizeof(std::string));
  return texts(rt, split_at(str(self), separator, limit, from_right));
}
Value split(Runtime& rt, const Value& self, Args& args) { return split_method(rt, self, args, "split", false); }
Value rsplit(Runtime& rt, const Value& self, Args& args) { return split_method(rt, self, args, "rsplit", true); }

bool is_line_break(int32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

Value splitlines(Runtime& rt, const Value& self, Args& args) {
  const auto bound = bind(args, "splitlines", {"keepends"});
  const bool keep = bound[0] != nullptr && bound[0]->truthy();
  const std::string& s = str(self);
  rt.work(s.size());
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    const int32_t c = code_point(s, i);
    size_t end = i + char_length(s, i);
    if (is_line_break(c)) {
      if (c == '\r' && end < s.size() && s[end] == '\n') ++end;
      lines.push_back(s.substr(begin, (keep ? end : i) - begin));
      begin = end;
    }
    i = end;
  }
  if (begin < s.size()) lines.push_back(s.substr(begin));
  return texts(rt, lines);
}

template <class Match>
Value any_affix(const Value& affix, std::string_view name, Match match) {
  if (affix.is(Type::kList) && affix.as_list().kind == ListKind::kTuple) {
    for (const Value& item : affix.as_list().items) {
      if (match(string_argument(item, name))) return true;
    }
    return false;
  }
  return match(string_argument(affix, name));
}

Value startswith(Runtime& rt, const Value& self, Args& args) {
  const auto bound = bind(args, "startswith", {"prefix"}, 1);
  rt.step();
  return any_affix(*bound[0], "startswith", [&](const std::string& p) { return str(self).starts_with(p); });
}
Value endswith(Runtime& rt, const Value& self, Args& args) {
  const auto bound = bind(args, "endswith", {"suffix"}, 1);
  rt.step();
  return any_affix(*bound[0], "endswith", [&](const std::string& p) { return str(self).ends_with(p); });
}

template <std::string (*kConvert)(std::string_view)>
Value convert(Runtime& rt, const Value& self, Args& args) {
  bind(args, "str method", {});
  rt.work(str(self).size());
  return rt.text(kConvert(str(self)));
}

template <bool (*kClass)(int32_t)>
Value all_of(Runtime& rt, const Value& self, Args& args) {
  bind(args, "str method", {});
  const std::string& s = str(self);
  rt.work(s.size());
  for (size_t i = 0; i < s.size(); i += char_length(s, i)) {
    if (!kClass(code_point(s, i))) return false;
  }
  return !s.empty();
}
bool is_alnum(int32_t c) { return is_alpha(c) || is_digit(c); }

Value islower(Runtime& rt, const Value& self, Args&) {
  Args none;
  return rt.test("lower", self, none);
}
Value isupper(Runtime& rt, const Value& self, Args&) {
  Args none;
  return rt.test("upper", self, none);
}

Value replace(Runtime& rt, const Value& self, Args& args) { return rt.filter("replace", self, args); }

Value find_in(Runtime& rt, const Value& self, Args& args, std::string_view name, bool last) {
  const auto bound = bind(args, name, {"sub", "start", "end"}, 1);
  const std::string& needle = string_argument(*bound[0], name);
  const Value part = bound[1] == nullptr ? self : rt.slice(self, bound[1], bound[2], nullptr);
  rt.work(str(self).size() + str(self).size() / 1024 * needle.size());
  const size_t pos = last ? str(part).rfind(needle) : str(part).find(needle);
  if (pos == std::string::npos) return int64_t(-1);
  int64_t offset = 0;
  if (bound[1] != nullptr) {
    const int64_t n = rt.length(self);
    offset = int_argument(bound[1], 0, name);
    offset = std::clamp<int64_t>(offset < 0 ? std::max<int64_t>(offset, -n) + n : offset, 0, n);
  }
  return offset + int64_t(count_chars(std::string_view(str(part)).substr(0, pos)));
}
Value find(Runtime& rt, const Value& self, Args& args) { return find_in(rt, self, args, "find", false); }
Value rfind(Runtime& rt, const Value& self, Args& args) { return find_in(rt, self, args, "rfind", true); }
Value index(Runtime& rt, const Value& self, Args& args) {
  const Value found = find_in(rt, self, args, "index", false);
  EF_CHECK(found.as_int() >= 0, RequestError, "chat template: substring not found");
  return found;
}

Value count(Runtime& rt, const Value& self, Args& args) {
  const auto bound = bind(args, "count", {"sub"}, 1);
  const std::string& needle = string_argument(*bound[0], "count");
  rt.work(str(self).size() + str(self).size() / 1024 * needle.size());
  if (needle.empty()) return rt.length(self) + 1;
  int64_t n = 0;
  for (size_t pos = 0; (pos = str(self).find(needle, pos)) != std::string::npos; pos += needle.size()) ++n;
  return n;
}

Value join(Runtime& rt, const Value& self, Args& args) {
  const auto bound = bind(args, "join", {"iterable"}, 1);
  std::string out;
  bool first = true;
  const auto items = rt.iterate(*bound[0]);
  for (const Value& item : items->items) {
    if (!first) out += str(self);
    first = false;
    out += string_argument(item, "join");
    rt.charge(str(self).size() + item.as_string().size());
  }
  return rt.text(std::move(out));
}

/// '{} {name} {0}' without format specifications.
Value format(Runtime& rt, const Value& self, Args& args) {
  const std::string& s = str(self);
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    rt.step();
    if ((s[i] == '{' || s[i] == '}') && i + 1 < s.size() && s[i + 1] == s[i]) {
      out += s[i++];
      continue;
    }
    EF_CHECK(s[i] != '}', RequestError, "chat template: format: single '}}' in the format string");
    if (s[i] != '{') {
      out += s[i];
      continue;
    }
    const size_t end = s.find('}', i);
    EF_CHECK(end != std::string::npos, RequestError,
             "chat template: format: expected '}}' before the end of the string");
    const std::string field = s.substr(i + 1, end - i - 1);
    EF_CHECK(field.find_first_of(".[!:") == std::string::npos, RequestError,
             "chat template: format: '{{{}}}' is not supported", field);
    const bool number = field.find_first_not_of("0123456789") == std::string::npos;
    const Value* value = nullptr;
    if (number) {
      const size_t at = field.empty() ? next++ : (field.size() > 6 ? SIZE_MAX : size_t(std::stoul(field)));
      if (at < args.positional.size()) value = &args.positional[at];
    } else {
      for (const auto& [name, v] : args.keyword) {
        if (name == field) value = &v;
      }
    }
    EF_CHECK(value != nullptr, RequestError, "chat template: format: no argument for '{{{}}}'", field);
    out += rt.string(*value);
    i = end;
  }
  return rt.text(std::move(out));
}

Value removeprefix(Runtime& rt, const Value& self, Args& args) {
  const std::string& p = string_argument(*bind(args, "removeprefix", {"prefix"}, 1)[0], "removeprefix");
  return str(self).starts_with(p) ? rt.text(str(self).substr(p.size())) : self;
}
Value removesuffix(Runtime& rt, const Value& self, Args& args) {
  const std::string& p = string_argument(*bind(args, "removesuffix", {"suffix"}, 1)[0], "removesuffix");
  return str(self).ends_with(p) ? rt.text(str(self).substr(0, str(self).size() - p.size())) : self;
}

Value partition_at(Runtime& rt, const Value& self, Args& args, std::string_view name, bool last) {
  const std::string& separator = string_argument(*bind(args, name, {"sep"}, 1)[0], name);
  EF_CHECK(!separator.empty(), RequestError, "chat template: empty separator");
  const std::string& s = str(self);
  rt.work(s.size() + s.size() / 1024 * separator.size());
  const size_t pos = last ? s.rfind(separator) : s.find(separator);
  if (pos == std::string::npos) {
    return texts(rt, last ? std::vector<std::string>{"", "", s} : std::vector<std::string>{s, "", ""},
                 ListKind::kTuple);
  }
  return texts(rt, {s.substr(0, pos), separator, s.substr(pos + separator.size())}, ListKind::kTuple);
}
Value partition(Runtime& rt, const Value& self, Args& args) { return partition_at(rt, self, args, "partition", false); }
Value rpartition(Runtime& rt, const Value& self, Args& args) {
  return partition_at(rt, self, args, "rpartition", true);
}

Value pad(Runtime& rt, const Value& self, Args& args, std::string_view name, int left_parts, int right_parts) {
  const auto bound = bind(args, name, {"width", "fillchar"}, 1);
  const int64_t missing = std::max<int64_t>(0, int_argument(bound[0], 0, name) - rt.length(self));
  const std::string fill = bound[1] == nullptr ? " " : string_argument(*bound[1], name);
  EF_CHECK(count_chars(fill) == 1, RequestError, "chat template: {}: the fill character must be one character", name);
  EF_CHECK(missing <= kMaxValueWeight, RequestError, "chat template: a value is larger than {} bytes", kMaxValueWeight);
  rt.charge(size_t(missing) * fill.size());
  const int64_t left = missing * left_parts / (left_parts + right_parts);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += str(self);
  for (int64_t i = left; i < missing; ++i) out += fill;
  return rt.text(std::move(out));
}
Value ljust(Runtime& rt, const Value& self, Args& args) { return pad(rt, self, args, "ljust", 0, 1); }
Value rjust(Runtime& rt, const Value& self, Args& args) { return pad(rt, self, args, "rjust", 1, 0); }

Value dict_items(Runtime& rt, const Value& self, Args& args) {
  bind(args, "items", {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.as_dict().items()) items.push_back(rt.list({key, value}, ListKind::kTuple));
  return rt.list(std::move(items), ListKind::kView, "dict_items");
}
Value dict_keys(Runtime& rt, const Value& self, Args& args) {
  bind(args, "keys", {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.as_dict().items()) items.push_back(key);
  return rt.list(std::move(items), ListKind::kView, "dict_keys");
}
Value dict_values(Runtime& rt, const Value& self, Args& args) {
  bind(args, "values", {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.as_dict().items()) items.push_back(value);
  return rt.list(std::move(items), ListKind::kView, "dict_values");
}
Value dict_get(Runtime&, const Value& self, Args& args) {
  const auto bound = bind(args, "get", {"key", "default"}, 1);
  if (const Value* found = self.as_dict().find(*bound[0])) return *found;
  return bound[1] == nullptr ? Value::none() : *bound[1];
}
Value copy(Runtime&, const Value& self, Args&) { return self; }

Value list_count(Runtime& rt, const Value& self, Args& args) {
  const auto bound = bind(args, "count", {"value"}, 1);
  int64_t n = 0;
  for (const Value& item : self.as_list().items) n += rt.equals(item, *bound[0]) ? 1 : 0;
  return n;
}
Value list_index(Runtime& rt, const Value& self, Args& args) {
  const auto bound = bind(args, "index", {"value"}, 1);
  const auto& items = self.as_list().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (rt.equals(items[i], *bound[0])) return int64_t(i);
  }
  fail<RequestError>("chat template: the value is not in the list");
}

struct Row {
  std::string_view name;
  FilterFunction function;
};
const Row kStringMethods[] = {
    {"strip", strip_both},
    {"lstrip", strip_left},
    {"rstrip", strip_right},
    {"split", split},
    {"rsplit", rsplit},
    {"splitlines", splitlines},
    {"startswith", startswith},
    {"endswith", endswith},
    {"upper", convert<to_upper>},
    {"lower", convert<to_lower>},
    {"casefold", convert<to_lower>},
    {"title", convert<title_words>},
    {"capitalize", convert<capitalize>},
    {"isspace", all_of<is_space>},
    {"isalpha", all_of<is_alpha>},
    {"isdigit", all_of<is_digit>},
    {"isdecimal", all_of<is_digit>},
    {"isnumeric", all_of<is_digit>},
    {"isalnum", all_of<is_alnum>},
    {"islower", islower},
    {"isupper", isupper},
    {"replace", replace},
    {"find", find},
    {"rfind", rfind},
    {"index", index},
    {"count", count},
    {"join", join},
    {"format", format},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"partition", partition},
    {"rpartition", rpartition},
    {"ljust", ljust},
    {"rjust", rjust},
};
const Row kDictMethods[] = {
    {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", copy},
};
const Row kListMethods[] = {{"count", list_count}, {"index", list_index}};

template <size_t N>
FilterFunction look_up(const Row (&rows)[N], std::string_view name) {
  for (const Row& row : rows) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

}  // namespace

FilterFunction find_method(const Value& self, std::string_view name) {
  if (self.is(Type::kString)) return look_up(kStringMethods, name);
  if (self.is(Type::kDict)) return look_up(kDictMethods, name);
  if (!self.is(Type::kList)) return nullptr;
  const ListKind kind = self.as_list().kind;
  if (kind == ListKind::kGenerator || kind == ListKind::kView) return nullptr;
  if (kind == ListKind::kList && name == "copy") return copy;
  return look_up(kListMethods, name);
}

bool is_mutator(const Value& self, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (self.is(Type::kList)) return self.as_list().kind == ListKind::kList && has(kList);
  return self.is(Type::kDict) && has(kDict);
}

}  // namespace ef::jinja
