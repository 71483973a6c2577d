#include "expertflow/hub/address.h"

#include <algorithm>
#include <vector>

#include "expertflow/hub/http.h"

namespace ef {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() && text.front() != '.' && text.find("..") == std::string::npos &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c < 0x80 && (std::isalnum(c) || c == '-' || c == '_' || c == '.'); });
}

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == separator)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

/// ENDPOINT/owner/name[/tree/REV | /blob/REV/FILE]; false for anything else (a /resolve/ address is a file).
bool parse_page(const std::string& url, const std::string& endpoint, HubAddress& out) {
  if (!url.starts_with(endpoint + "/")) return false;
  const std::string path = url.substr(endpoint.size() + 1);
  const std::vector<std::string> parts = split(path.substr(0, path.find_first_of("?#")), '/');
  if (parts.size() < 2 || !is_name(parts[0]) || !is_name(parts[1])) return false;
  const bool page = parts.size() == 2 || (parts.size() == 3 && parts[2].empty());
  const bool tree = parts.size() == 4 && parts[2] == "tree";
  const bool blob = parts.size() >= 5 && parts[2] == "blob";
  if (!page && !tree && !blob) return false;
  out.repository = parts[0] + "/" + parts[1];
  if (tree || blob) out.revision = parts[3];
  for (size_t i = 4; blob && i < parts.size(); ++i) out.pattern += (i > 4 ? "/" : "") + parts[i];
  return true;
}

}  // namespace

bool is_safe_path(const std::string& path) {
  if (path.empty() || path.front() == '/' || path.find('\\') != std::string::npos || !is_printable(path)) return false;
  for (const std::string& part : split(path, '/'))
    if (part.empty() || part == "." || part == "..") return false;
  return true;
}

HubAddress parse_hub_address(const std::string& text, const std::string& endpoint) {
  HubAddress out;
  if (text.starts_with("https://") || text.starts_with("http://")) {
    EF_CHECK(!http_origin(text).empty() && is_printable(text), ConfigError, "{}: expected an address with a host",
             text);
    if (!parse_page(text, endpoint, out)) out.url = text;
    return out;
  }
  std::string rest = text.starts_with("hf://") ? text.substr(5) : text;
  EF_CHECK(rest.find("://") == std::string::npos, ConfigError,
           "{}: expected owner/name, hf://owner/name[@revision][:file] or https://..., found another scheme", text);
  if (const size_t colon = rest.find(':'); colon != std::string::npos) {
    out.pattern = rest.substr(colon + 1);
    rest.resize(colon);
    EF_CHECK(!out.pattern.empty() && is_printable(out.pattern), ConfigError,
             "{}: expected a file or a pattern behind the colon", text);
  }
  if (const size_t at = rest.find('@'); at != std::string::npos) {
    out.revision = rest.substr(at + 1);
    rest.resize(at);
    EF_CHECK(!out.revision.empty() && is_printable(out.revision), ConfigError, "{}: expected a revision behind the @",
             text);
  }
  const std::vector<std::string> parts = split(rest, '/');
  EF_CHECK(parts.size() == 2 && is_name(parts[0]) && is_name(parts[1]), ConfigError,
           "{}: expected owner/name (letters, digits, '-', '_' and '.'), found \"{}\"", text, rest);
  out.repository = rest;
  return out;
}

}  // namespace ef
