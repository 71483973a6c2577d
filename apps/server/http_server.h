// HTTP/1.1 over Boost.Beast, behind an interface without it: requests in, answers out, whole or as streams, and word of
// clients that went away. A few threads serve any number of connections.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/base/log.h"

namespace ef::server {

struct HttpRequest {
  std::string method, path, query;             ///< path without the query
  std::map<std::string, std::string> headers;  ///< names in lower case; one that comes twice is joined by a comma
  std::string body;
  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string() : it->second;
  }
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// The answer to one request. Safe from any thread; whatever is sent after the client went away, or after the end, is
/// dropped.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  /// A whole answer.
  virtual void send(int status, const std::string& content_type, std::string body, const HttpHeaders& headers = {}) = 0;
  /// Or a stream: its head, pieces, its end. filler: a piece that means nothing in a stream of this kind (a comment),
  /// for clients of which one must know whether they are still there.
  virtual void begin(int status, const std::string& content_type, const HttpHeaders& headers = {},
                     const std::string& filler = "") = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  /// Runs one after the other with all else of this connection, on an I/O thread.
  virtual void post(std::function<void()> work) = 0;
  /// Called once, on an I/O thread, if the client goes away before the end (at once if it has gone already). One that
  /// has only shut its sending side is still there.
  virtual void on_gone(std::function<void()> gone) = 0;
  /// Called on an I/O thread whenever so long nothing was sent, until the end.
  virtual void when_silent(double seconds, std::function<void()> silent) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  ///< 0: any that is free
  int threads = 2;
  uint64_t max_body_bytes = 32 << 20;
  double read_seconds = 30;           ///< for a request to arrive, once it has begun
  double idle_seconds = 120;          ///< between requests of a connection
  double write_seconds = 60;          ///< for a client to take what it was sent
  double drain_seconds = 30;          ///< for answers under way when the server ends
  double probe_seconds = 1;           ///< between two looks whether a client that shut its sending side still reads
  double linger_seconds = 5;          ///< for a client to read a last answer while it still sends
  size_t max_unsent_bytes = 8 << 20;  ///< of one answer: a client that does not read loses it
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;
  /// The body of an answer that the server itself gives: to what is no HTTP (400), too large (413), too slow (408), in
  /// a transfer coding that it does not know (501).
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;
  /// Listens from then on. ConfigError if the address cannot be had.
  HttpServer(const HttpOptions& options, Handler handler, ErrorBody error_body, const Log& log);
  /// Drops what is under way. Nobody may hold a reply any more.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  /// No new connections; returns when the answers under way have ended, or after drain_seconds: true if all had.
  bool drain();
  size_t open_connections() const;
  /// Clients that went away before their answer's end.
  uint64_t lost_clients() const;
  /// Times that a client which had shut its sending side was asked whether it reads.
  uint64_t probes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ef::server
