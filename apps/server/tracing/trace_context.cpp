#include "apps/server/tracing/trace_context.h"

#include <algorithm>
#include <set>

#include "expertflow/base/trim.h"

namespace ef::server {

namespace {

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}
bool is_zero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

constexpr std::string_view kSpace = " \t";

bool is_key_part(std::string_view part, size_t most, bool digit_first) {
  if (part.empty() || part.size() > most) return false;
  if (!is_lower(part[0]) && !(digit_first && is_digit(part[0]))) return false;
  return std::all_of(part.begin(), part.end(),
                     [](char c) { return is_lower(c) || is_digit(c) || c == '_' || c == '-' || c == '*' || c == '/'; });
}

// A key of its own, or tenant@system.
bool is_key(std::string_view key) {
  constexpr size_t kMostKey = 256, kMostTenant = 241, kMostSystem = 14;
  const size_t at = key.find('@');
  if (at == std::string_view::npos) return is_key_part(key, kMostKey, false);
  return is_key_part(key.substr(0, at), kMostTenant, true) && is_key_part(key.substr(at + 1), kMostSystem, false);
}

// Space at its end belongs to the list.
bool is_value(std::string_view value) {
  constexpr size_t kMost = 256;
  return !value.empty() && value.size() <= kMost &&
         std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view value) {
  value = trimmed(value, kSpace);
  constexpr size_t kLength = 55;  // 2 + 1 + 32 + 1 + 16 + 1 + 2
  if (value.size() < kLength) return std::nullopt;
  const std::string_view version = value.substr(0, 2), trace = value.substr(3, 32), span = value.substr(36, 16),
                         flags = value.substr(53, 2);
  if (value[2] != '-' || value[35] != '-' || value[52] != '-') return std::nullopt;
  if (!is_hex(version) || version == "ff" || !is_hex(trace) || !is_hex(span) || !is_hex(flags)) return std::nullopt;
  if (is_zero(trace) || is_zero(span)) return std::nullopt;
  if (value.size() > kLength && (version == "00" || value[kLength] != '-')) return std::nullopt;
  const char low = flags[1];
  const int bits = is_digit(low) ? low - '0' : low - 'a' + 10;
  return TraceContext{std::string(trace), std::string(span), (bits & 1) != 0, ""};
}

std::optional<std::string> parse_tracestate(std::string_view value) {
  constexpr size_t kMostMembers = 32;
  std::set<std::string_view> keys;
  std::string all;
  for (size_t at = 0; at <= value.size();) {
    const size_t end = std::min(value.find(',', at), value.size());
    const std::string_view member = trimmed(value.substr(at, end - at), kSpace);
    at = end + 1;
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view key = member.substr(0, equals);
    if (!is_key(key) || !is_value(member.substr(equals + 1)) || !keys.insert(key).second) return std::nullopt;
    if (keys.size() > kMostMembers) return std::nullopt;
    all += (all.empty() ? "" : ",") + std::string(member);
  }
  return all;
}

std::string traceparent_of(const TraceContext& context) {
  return "00-" + context.trace_id + "-" + context.span_id + (context.sampled ? "-01" : "-00");
}

}  // namespace ef::server
