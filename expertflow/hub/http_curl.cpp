#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <mutex>

#include "expertflow/hub/http.h"

namespace ef {
namespace {

bool is_passing(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

bool is_tls(CURLcode code) {
  switch (code) {
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return true;
    default:
      return false;
  }
}

/// What the callbacks see. An exception must not pass through libcurl: it waits here.
struct Transfer {
  CURL* curl = nullptr;
  const std::function<HttpSink(const HttpResponse&)>* on_headers = nullptr;
  HttpResponse response;
  HttpSink sink;
  bool body_begun = false;
  std::exception_ptr error;

  bool begin_body() {
    if (body_begun) return true;
    body_begun = true;
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    response.status = int(status);
    try {
      sink = (*on_headers)(response);
    } catch (...) {
      error = std::current_exception();
    }
    return !error;
  }
};

size_t on_header(char* data, size_t, size_t size, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  std::string line(data, size);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  if (line.starts_with("HTTP/")) {
    transfer.response.headers.clear();  // after an interim answer
    return size;
  }
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return size;
  std::string name = line.substr(0, colon);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  const size_t value = line.find_first_not_of(" \t", colon + 1);
  transfer.response.headers[name] = value == std::string::npos ? "" : line.substr(value);
  return size;
}

size_t on_body(char* data, size_t, size_t size, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  if (!transfer.begin_body()) return 0;
  if (!transfer.sink) return size;
  try {
    transfer.sink({reinterpret_cast<const std::byte*>(data), size});
  } catch (...) {
    transfer.error = std::current_exception();
    return 0;
  }
  return size;
}

class CurlClient final : public HttpClient {
 public:
  explicit CurlClient(std::chrono::seconds stalled) {
    static std::once_flag once;  // libcurl's own global state
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    curl_ = curl_easy_init();
    EF_CHECK(curl_ != nullptr, DeviceError, "libcurl cannot be started");
    curl_easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl_, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl_, CURLOPT_USERAGENT, "expertflow/0.1.0");
    curl_easy_setopt(curl_, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(curl_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl_, CURLOPT_LOW_SPEED_TIME, long(stalled.count()));
    curl_easy_setopt(curl_, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl_, CURLOPT_ERRORBUFFER, message_);
  }
  ~CurlClient() override { curl_easy_cleanup(curl_); }

  HttpResponse get(const HttpRequest& request,
                   const std::function<HttpSink(const HttpResponse&)>& on_headers) override {
    Transfer transfer;
    transfer.curl = curl_;
    transfer.on_headers = &on_headers;
    curl_slist* headers = nullptr;
    for (const auto& [name, value] : request.headers)
      headers = curl_slist_append(headers, (name + ": " + value).c_str());
    curl_easy_setopt(curl_, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl_, CURLOPT_HEADERDATA, &transfer);
    curl_easy_setopt(curl_, CURLOPT_WRITEDATA, &transfer);
    message_[0] = '\0';
    const CURLcode code = curl_easy_perform(curl_);
    curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, nullptr);
    curl_slist_free_all(headers);
    if (code == CURLE_OK) transfer.begin_body();  // an empty body
    if (transfer.error) std::rethrow_exception(transfer.error);
    if (code != CURLE_OK) {
      const char* what = message_[0] ? message_ : curl_easy_strerror(code);
      throw HttpFailure(
          fmt::format("{}: {}{}", request.url.substr(0, request.url.find('?')), is_tls(code) ? "TLS: " : "", what),
          is_passing(code));
    }
    return std::move(transfer.response);
  }

 private:
  CURL* curl_ = nullptr;
  char message_[CURL_ERROR_SIZE] = {};
};

}  // namespace

std::unique_ptr<HttpClient> make_curl_client(std::chrono::seconds stalled) {
  return std::make_unique<CurlClient>(stalled);
}

}  // namespace ef
