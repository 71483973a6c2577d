#include "expertflow/hub/http.h"

#include <algorithm>
#include <cctype>

namespace ef {
namespace {

constexpr int kMaxRedirects = 10;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

std::string http_origin(const std::string& url) {
  const size_t scheme_end = url.find("://");
  if (scheme_end == std::string::npos) return "";
  const std::string scheme = lower(url.substr(0, scheme_end));
  if (scheme != "http" && scheme != "https") return "";
  const size_t begin = scheme_end + 3;
  std::string host = lower(url.substr(begin, url.find_first_of("/?#", begin) - begin));
  if (const size_t at = host.rfind('@'); at != std::string::npos) host.erase(0, at + 1);
  if (host.empty()) return "";
  const size_t colon = host.rfind(':');
  const bool port = colon != std::string::npos && host.find(']', colon) == std::string::npos;
  if (!port) host += scheme == "https" ? ":443" : ":80";
  return scheme + "://" + host;
}

std::string resolve_location(const std::string& url, const std::string& location) {
  if (location.find("://") != std::string::npos) return location;
  const size_t begin = url.find("://") + 3;
  if (location.starts_with("//")) return url.substr(0, begin - 2) + location;
  const size_t path = std::min(url.find_first_of("/?#", begin), url.size());
  if (location.starts_with("/")) return url.substr(0, path) + location;
  const size_t path_end = std::min(url.find_first_of("?#", path), url.size());
  const size_t slash = url.rfind('/', path_end);
  if (slash == std::string::npos || slash < path) return url.substr(0, path) + "/" + location;
  return url.substr(0, slash + 1) + location;
}

std::string url_encode(const std::string& text, const std::string& keep) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte < 0x80 && std::isalnum(byte)) || std::string_view("-._~").find(c) != std::string::npos ||
                       keep.find(c) != std::string::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

HttpResponse get_following(HttpClient& client, HttpRequest request, const HttpCredentials& credentials,
                           const std::function<HttpSink(const HttpResponse&)>& on_headers,
                           std::vector<HttpResponse>* chain) {
  for (int hop = 0;; ++hop) {
    HttpRequest sent = request;
    if (!credentials.token.empty() && http_origin(request.url) == credentials.origin)
      sent.headers.emplace_back("Authorization", "Bearer " + credentials.token);
    const HttpResponse response =
        client.get(sent, [&](const HttpResponse& r) { return is_redirect(r.status) ? HttpSink{} : on_headers(r); });
    if (chain) chain->push_back(response);
    if (!is_redirect(response.status)) return response;
    const std::string location = response.header("location");
    if (location.empty())
      throw HttpFailure(
          fmt::format("{}: expected a location to go to, found none in the answer {}", request.url, response.status),
          false);
    if (hop == kMaxRedirects)
      throw HttpFailure(fmt::format("{}: expected at most {} redirects, found more", request.url, kMaxRedirects),
                        false);
    const std::string next = resolve_location(request.url, location);
    const std::string from = http_origin(request.url), to = http_origin(next);
    if (to.empty() || (from.starts_with("https://") && !to.starts_with("https://")))
      throw HttpFailure(fmt::format("{}: redirects to {}, which is not followed: expected https", request.url,
                                    to.empty() ? "another kind of address" : to),
                        false);
    request.url = next;
  }
}

}  // namespace ef
