// Filters over sequences and mappings.
#include <algorithm>
#include <functional>

#include "expertflow/text/jinja_filters.h"
#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

Value folded(Runtime& rt, const Value& v, bool case_sensitive) {
  return !case_sensitive && v.is(Type::kString) ? rt.text(to_lower(v.as_string())) : v;
}

bool truth(const Value* v) { return v != nullptr && v->truthy(); }

/// The value to sort, group or compare an item by.
using Key = std::function<Value(const Value&)>;
Key key_of(Runtime& rt, const Value* path, bool case_sensitive) {
  return [&rt, path, case_sensitive](const Value& item) {
    const Value v = path == nullptr || path->is(Type::kNone) ? item : follow_path(rt, item, *path);
    return folded(rt, v, case_sensitive);
  };
}

/// sort() takes several paths with commas between them.
Key sort_key(Runtime& rt, const Value* path, bool case_sensitive) {
  if (path == nullptr || !path->is(Type::kString) || path->as_string().find(',') == std::string::npos) {
    return key_of(rt, path, case_sensitive);
  }
  std::vector<Value> paths;
  const std::string& all = path->as_string();
  for (size_t pos = 0; pos <= all.size();) {
    const size_t end = std::min(all.find(',', pos), all.size());
    paths.push_back(rt.text(all.substr(pos, end - pos)));
    pos = end + 1;
  }
  return [&rt, paths, case_sensitive](const Value& item) {
    std::vector<Value> keys;
    for (const Value& p : paths) keys.push_back(folded(rt, follow_path(rt, item, p), case_sensitive));
    return rt.list(std::move(keys));
  };
}

std::vector<Value> sorted(Runtime& rt, const std::vector<Value>& items, const Key& key, bool reverse) {
  std::vector<std::pair<Value, size_t>> order;
  order.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) order.emplace_back(key(items[i]), i);
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    rt.step();
    return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
  std::vector<Value> out;
  out.reserve(items.size());
  for (const auto& [k, i] : order) out.push_back(items[i]);
  return out;
}

Value length(Runtime& rt, const Value& v, Args&) { return rt.length(v); }

Value first(Runtime& rt, const Value& v, Args&) {
  const auto items = rt.iterate(v);
  return items->items.empty() ? Value::undefined("No first item, sequence was empty.") : items->items.front();
}

Value last(Runtime& rt, const Value& v, Args&) {
  const auto items = rt.iterate(v);
  return items->items.empty() ? Value::undefined("No last item, sequence was empty.") : items->items.back();
}

Value list_filter(Runtime& rt, const Value& v, Args&) { return rt.list(rt.iterate(v)->items); }

Value items_filter(Runtime& rt, const Value& v, Args&) {
  if (v.is(Type::kUndefined)) return rt.list({}, ListKind::kGenerator);
  EF_CHECK(v.is(Type::kDict), RequestError, "chat template: Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : v.as_dict().items()) items.push_back(rt.list({key, value}, ListKind::kTuple));
  return rt.list(std::move(items), ListKind::kGenerator);
}

Value dictsort(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] == nullptr ? "key" : string_argument(*bound[1], "dictsort");
  EF_CHECK(by == "key" || by == "value", RequestError,
           "chat template: You can only sort by either \"key\" or \"value\"");
  EF_CHECK(v.is(Type::kDict), RequestError, "chat template: dictsort: expected a dict, found {}", v.type_name());
  std::vector<Value> items;
  for (const auto& [key, value] : v.as_dict().items()) items.push_back(rt.list({key, value}, ListKind::kTuple));
  const size_t part = by == "key" ? 0 : 1;
  const bool case_sensitive = truth(bound[0]);
  const Key key = [&](const Value& item) { return folded(rt, item.as_list().items[part], case_sensitive); };
  return rt.list(sorted(rt, items, key, truth(bound[2])));
}

Value sort(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "sort", {"reverse", "case_sensitive", "attribute"});
  return rt.list(sorted(rt, rt.iterate(v)->items, sort_key(rt, bound[2], truth(bound[1])), truth(bound[0])));
}

Value unique(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "unique", {"case_sensitive", "attribute"});
  const Key key = key_of(rt, bound[1], truth(bound[0]));
  Dict seen;
  std::vector<Value> out;
  const auto items = rt.iterate(v);
  for (const Value& item : items->items) {
    const Value k = key(item);
    rt.step();
    if (seen.find(k) != nullptr) continue;
    EF_CHECK(seen.set(k, Value(true)), RequestError, "chat template: unhashable type: '{}'", k.type_name());
    out.push_back(item);
  }
  return rt.list(std::move(out), ListKind::kGenerator);
}

Value extreme(Runtime& rt, const Value& v, Args& args, std::string_view name, int sign) {
  const auto bound = bind(args, name, {"case_sensitive", "attribute"});
  const auto items = rt.iterate(v);
  if (items->items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Key key = key_of(rt, bound[1], truth(bound[0]));
  const Value* best = &items->items[0];
  Value best_key = key(*best);
  for (const Value& item : items->items) {
    const Value k = key(item);
    if (rt.order(k, best_key) * sign <= 0) continue;
    best = &item;
    best_key = k;
  }
  return *best;
}
Value min_filter(Runtime& rt, const Value& v, Args& args) { return extreme(rt, v, args, "min", -1); }
Value max_filter(Runtime& rt, const Value& v, Args& args) { return extreme(rt, v, args, "max", 1); }

Value sum(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "sum", {"attribute", "start"});
  Value total = bound[1] == nullptr ? Value(int64_t(0)) : *bound[1];
  const auto items = rt.iterate(v);
  for (const Value& item : items->items) {
    rt.step();
    total = rt.binary("+", total,
                      bound[0] == nullptr || bound[0]->is(Type::kNone) ? item : follow_path(rt, item, *bound[0]));
  }
  return total;
}

Value join(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "join", {"d", "attribute"});
  const std::string separator = bound[0] == nullptr ? "" : rt.string(*bound[0]);
  std::string out;
  bool is_first = true;
  const auto items = rt.iterate(v);
  for (const Value& item : items->items) {
    if (!is_first) {
      rt.charge(separator.size());
      out += separator;
    }
    is_first = false;
    out += rt.string(bound[1] == nullptr || bound[1]->is(Type::kNone) ? item : follow_path(rt, item, *bound[1]));
  }
  return rt.text(std::move(out));
}

Value reverse(Runtime& rt, const Value& v, Args&) {
  const auto items = rt.iterate(v);
  std::vector<Value> out(items->items.rbegin(), items->items.rend());
  if (!v.is(Type::kString)) return rt.list(std::move(out), ListKind::kGenerator);
  std::string s;
  for (const Value& c : out) s += c.as_string();
  return rt.text(std::move(s));
}

Value map(Runtime& rt, const Value& v, Args& args) {
  std::vector<Value> out;
  const auto items = rt.iterate(v);
  if (args.positional.empty()) {
    const auto bound = bind(args, "map", {"attribute", "default"}, 1);
    for (const Value& item : items->items) {
      Value found = follow_path(rt, item, *bound[0]);
      out.push_back(found.is(Type::kUndefined) && bound[1] != nullptr ? *bound[1] : std::move(found));
    }
  } else {
    const std::string name = string_argument(args.positional[0], "map");
    for (const Value& item : items->items) {
      Args rest;
      rest.positional.assign(args.positional.begin() + 1, args.positional.end());
      rest.keyword = args.keyword;
      out.push_back(rt.filter(name, item, rest));
    }
  }
  return rt.list(std::move(out), ListKind::kGenerator);
}

Value pick(Runtime& rt, const Value& v, Args& args, bool by_attribute, bool wanted) {
  const size_t used = by_attribute ? 1 : 0;
  EF_CHECK(args.positional.size() >= used, RequestError, "chat template: Missing parameter for attribute name");
  const bool has_test = args.positional.size() > used;
  const std::string test = has_test ? string_argument(args.positional[used], "select") : "";
  std::vector<Value> out;
  const auto items = rt.iterate(v);
  for (const Value& item : items->items) {
    const Value subject = by_attribute ? follow_path(rt, item, args.positional[0]) : item;
    bool matches = false;
    rt.step();
    if (has_test) {
      Args rest;
      rest.positional.assign(args.positional.begin() + std::ptrdiff_t(used) + 1, args.positional.end());
      rest.keyword = args.keyword;
      matches = rt.test(test, subject, rest);
    } else {
      matches = subject.truthy();
    }
    if (matches == wanted) out.push_back(item);
  }
  return rt.list(std::move(out), ListKind::kGenerator);
}
Value select(Runtime& rt, const Value& v, Args& args) { return pick(rt, v, args, false, true); }
Value reject(Runtime& rt, const Value& v, Args& args) { return pick(rt, v, args, false, false); }
Value selectattr(Runtime& rt, const Value& v, Args& args) { return pick(rt, v, args, true, true); }
Value rejectattr(Runtime& rt, const Value& v, Args& args) { return pick(rt, v, args, true, false); }

Value groupby(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const Key real = [&](const Value& item) {
    Value found = follow_path(rt, item, *bound[0]);
    return found.is(Type::kUndefined) && bound[1] != nullptr ? *bound[1] : found;
  };
  const Key key = [&](const Value& item) { return folded(rt, real(item), truth(bound[2])); };
  const auto items = sorted(rt, rt.iterate(v)->items, key, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < items.size();) {
    const Value k = key(items[i]);
    std::vector<Value> members;
    const Value name = real(items[i]);
    for (; i < items.size() && rt.equals(key(items[i]), k); ++i) members.push_back(items[i]);
    groups.push_back(rt.list({name, rt.list(std::move(members))}, ListKind::kGroup));
  }
  return rt.list(std::move(groups));
}

Value batch(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "batch", {"linecount", "fill_with"}, 1);
  const int64_t width = int_argument(bound[0], 0, "batch");
  EF_CHECK(width > 0, RequestError, "chat template: batch: the size must be positive, found {}", width);
  std::vector<Value> rows;
  std::vector<Value> row;
  const auto items = rt.iterate(v);
  for (const Value& item : items->items) {
    if (int64_t(row.size()) == width) rows.push_back(rt.list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (bound[1] != nullptr && !bound[1]->is(Type::kNone)) {
      rt.charge(size_t(std::min<int64_t>(width, INT64_MAX / 64)) * sizeof(Value));
      while (int64_t(row.size()) < width) row.push_back(*bound[1]);
    }
    rows.push_back(rt.list(std::move(row)));
  }
  return rt.list(std::move(rows), ListKind::kGenerator);
}

Value slice(Runtime& rt, const Value& v, Args& args) {
  const auto bound = bind(args, "slice", {"slices", "fill_with"}, 1);
  const int64_t count = int_argument(bound[0], 0, "slice");
  EF_CHECK(count > 0, RequestError, "chat template: slice: the count must be positive, found {}", count);
  const auto items = rt.iterate(v);
  const int64_t n = int64_t(items->items.size());
  rt.charge(size_t(std::min<int64_t>(count, INT64_MAX / 128)) * sizeof(List));
  std::vector<Value> rows;
  int64_t pos = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = n / count + (i < n % count ? 1 : 0);
    std::vector<Value> row(items->items.begin() + pos, items->items.begin() + pos + size);
    pos += size;
    if (bound[1] != nullptr && !bound[1]->is(Type::kNone) && i >= n % count) row.push_back(*bound[1]);
    rows.push_back(rt.list(std::move(row)));
  }
  return rt.list(std::move(rows), ListKind::kGenerator);
}

const FilterRow kFilters[] = {
    {"length", length},
    {"count", length},
    {"first", first},
    {"last", last},
    {"list", list_filter},
    {"items", items_filter},
    {"sort", sort},
    {"dictsort", dictsort},
    {"unique", unique},
    {"min", min_filter},
    {"max", max_filter},
    {"sum", sum},
    {"join", join},
    {"reverse", reverse},
    {"map", map},
    {"select", select},
    {"reject", reject},
    {"selectattr", selectattr},
    {"rejectattr", rejectattr},
    {"groupby", groupby},
    {"batch", batch},
    {"slice", slice},
};

}  // namespace

FilterFunction find_list_filter(std::string_view name) {
  for (const FilterRow& row : kFilters) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

Value follow_path(Runtime& rt, const Value& v, const Value& path) {
  rt.step();
  if (!path.is(Type::kString)) return rt.item(v, path);
  const std::string& text = path.as_string();
  Value found = v;
  for (size_t pos = 0; pos <= text.size();) {
    const size_t end = std::min(text.find('.', pos), text.size());
    const std::string part = text.substr(pos, end - pos);
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    found = rt.item(found, number ? Value(int64_t(std::stoll(part))) : rt.text(part));
    pos = end + 1;
  }
  return found;
}

}  // namespace ef::jinja
