// A small HTTP server on 127.0.0.1 for tests: answers are made by a function, and may be cut short.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace ef::testing {

struct ServedRequest {
  std::string path;                            ///< with the query
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? "" : it->second;
  }
};

struct ServedAnswer {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;  ///< Content-Length is added
  std::string body;
  std::optional<size_t> cut_after;  ///< the connection is closed after so many bytes of the body
};

class HttpServer {
 public:
  using Handler = std::function<ServedAnswer(const ServedRequest&)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const;  ///< "http://127.0.0.1:PORT"
  std::vector<ServedRequest> requests() const;

 private:
  void accept_all();
  void serve(int connection);

  Handler handler_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<ServedRequest> requests_;
  std::thread thread_;
};

/// A file with an entity tag: ranges are honoured if If-Range fits.
ServedAnswer serve_file(const ServedRequest& request, const std::string& body, const std::string& tag);

}  // namespace ef::testing
