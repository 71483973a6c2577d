// One HTTP GET at a time, without following redirects: who gets a token is decided here, not in a library.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "expertflow/base/errors.h"

namespace ef {

/// The connection failed. Passing faults (refused, reset, cut, timed out) are worth another try; others (TLS, a bad
/// address) are not.
class HttpFailure : public DeviceError {
 public:
  HttpFailure(const std::string& what, bool passing, std::chrono::seconds wait = {})
      : DeviceError(what), passing_(passing), wait_(wait) {}
  bool passing() const { return passing_; }
  std::chrono::seconds wait() const { return wait_; }  ///< what the server asks for before another try; 0: nothing

 private:
  bool passing_;
  std::chrono::seconds wait_;
};

struct HttpRequest {
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case; of equal ones the last
  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? "" : it->second;
  }
};

/// Bytes of a body as they come; an exception ends the transfer and passes through get().
using HttpSink = std::function<void(std::span<const std::byte>)>;

class HttpClient {
 public:
  virtual ~HttpClient() = default;
  /// on_headers is called once, before the body, and says where the body goes (an empty sink drops it). HttpFailure if
  /// there is no answer, or it ends early.
  virtual HttpResponse get(const HttpRequest& request,
                           const std::function<HttpSink(const HttpResponse&)>& on_headers) = 0;
};

/// Over libcurl. A transfer that stands still for `stalled` fails. Not for several threads at once.
std::unique_ptr<HttpClient> make_curl_client(std::chrono::seconds stalled = std::chrono::seconds(60));

/// Scheme, host and port in lower case: "https://hub.example:443". Empty if url is no http(s) address.
std::string http_origin(const std::string& url);
/// Where a Location header leads.
std::string resolve_location(const std::string& url, const std::string& location);
/// Percent-encoded but for unreserved characters and those of `keep`.
std::string url_encode(const std::string& text, const std::string& keep = "");

/// A token goes to this origin alone, whatever a redirect says.
struct HttpCredentials {
  std::string origin, token;
};

/// GET that follows up to ten redirects, never from https to http. chain: the answers on the way, the final one last.
HttpResponse get_following(HttpClient& client, HttpRequest request, const HttpCredentials& credentials,
                           const std::function<HttpSink(const HttpResponse&)>& on_headers,
                           std::vector<HttpResponse>* chain = nullptr);

}  // namespace ef
