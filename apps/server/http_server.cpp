#include "apps/server/http_server.h"

#include "apps/server/asio.h"

#include <algorithm>
#include <atomic>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include <netinet/tcp.h>

#include "expertflow/base/errors.h"

namespace ef::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

std::chrono::milliseconds milliseconds(double seconds) { return std::chrono::milliseconds(int64_t(seconds * 1000)); }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

std::string chunk(const std::string& piece) { return fmt::format("{:x}\r\n", piece.size()) + piece + "\r\n"; }

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, Handler handler, ErrorBody error_body, const Log& log)
      : options_(options), handler_(std::move(handler)), error_body_(std::move(error_body)), log_(log) {}

  void start();
  void stop();
  void accept();
  bool drain();

  HttpOptions options_;
  Handler handler_;
  ErrorBody error_body_;
  const Log& log_;
  std::atomic<bool> draining_{false}, stopping_{false};
  std::mutex mutex_;
  std::condition_variable quiet_;
  int answers_ = 0;  ///< under way
  std::atomic<size_t> connections_{0};
  std::atomic<uint64_t> lost_{0}, probes_{0};
  int port_ = 0;
  asio::io_context io_;  // owns handlers, and these connections: gone before all above
  tcp::acceptor acceptor_{asio::make_strand(io_)};
  asio::steady_timer retry_{acceptor_.get_executor()};
  std::vector<std::thread> threads_;

  void answer_began() {
    const std::lock_guard lock(mutex_);
    ++answers_;
  }
  void answer_ended() {
    const std::lock_guard lock(mutex_);
    if (--answers_ == 0) quiet_.notify_all();
  }
};

namespace {

// One connection: reads a request, waits for its answer while it watches the client, and goes on to the next.
template <class Impl>
class Connection : public std::enable_shared_from_this<Connection<Impl>> {
 public:
  Connection(tcp::socket socket, Impl* server) : server_(server), stream_(std::move(socket)) {
    ++server_->connections_;
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
  }
  ~Connection() {
    if (answering_) server_->answer_ended();
    --server_->connections_;
  }

  void start() {
    asio::dispatch(stream_.get_executor(), [self = this->shared_from_this()] { self->read(); });
  }

  // The reply's side; `number` tells answers of one connection apart.
  void post(std::function<void()> work) { asio::post(stream_.get_executor(), std::move(work)); }
  void send(uint64_t number, std::string head, std::string body, bool last, std::string filler = "") {
    post([self = this->shared_from_this(), number, head = std::move(head), body = std::move(body), last,
          filler = std::move(filler)]() mutable {
      if (number == self->number_ && !filler.empty()) self->filler_ = std::move(filler);
      self->queue(number, std::move(head), std::move(body), last);
    });
  }
  void watch(uint64_t number, std::function<void()> gone) {
    post([self = this->shared_from_this(), number, gone = std::move(gone)]() mutable {
      if (self->gone_ && self->number_ == number) return gone();
      if (self->answering_ && self->number_ == number) self->on_gone_.push_back(std::move(gone));
    });
  }
  void when_silent(uint64_t number, double seconds, std::function<void()> silent) {
    post([self = this->shared_from_this(), number, seconds, silent = std::move(silent)]() mutable {
      if (number != self->number_ || !self->answering_) return;
      self->silent_ = std::move(silent);
      self->wait_silent(number, seconds);
    });
  }
  bool keep_alive(bool chunkable) const { return keep_alive_ && chunkable && !server_->draining_; }
  bool stopping() const { return server_->stopping_; }
  bool is_old_client() const { return old_client_; }
  const HttpOptions& options() const { return server_->options_; }

 private:
  void read() {
    parser_.emplace();
    parser_->body_limit(server_->options_.max_body_bytes);
    parser_->header_limit(64 * 1024);
    if (half_closed_) return read_rest();
    // A connection may rest between requests; once one has begun it has to arrive.
    timed_out_ = false;
    arm(buffer_.size() ? server_->options_.read_seconds : server_->options_.idle_seconds);
    http::async_read_header(stream_, buffer_, *parser_, [self = this->shared_from_this()](error_code error, size_t) {
      if (error) return self->bad_request(error);
      self->arm(self->server_->options_.read_seconds);
      if (self->refused()) return;
      const auto& head = self->parser_->get();
      if (head.version() >= 11 && !head[http::field::expect].empty()) return self->go_ahead();
      self->read_body();
    });
  }

  // What the head alone forbids. Of an unknown transfer coding nobody knows where it ends: the connection ends (RFC
  // 9112, 6.1).
  bool refused() {
    const auto& head = parser_->get();
    const auto coding = head[http::field::transfer_encoding], expects = head[http::field::expect];
    if (!coding.empty() && (!beast::iequals(coding, "chunked") || head.count(http::field::transfer_encoding) > 1)) {
      refuse(501, fmt::format("Transfer-Encoding: expected chunked, found {}", std::string(coding)));
      return true;
    }
    if (!expects.empty() && !beast::iequals(expects, "100-continue")) {
      refuse(417, fmt::format("Expect: expected 100-continue, found {}", std::string(expects)));
      return true;
    }
    return false;
  }

  // Behind the end of what the client sends: the reactor would wait for an event that has already been. What came
  // before it may hold further requests.
  void read_rest() {
    parser_->eager(true);
    error_code error;
    while (buffer_.size() > 0 && !parser_->is_done()) {
      const size_t taken = parser_->put(buffer_.data(), error);
      buffer_.consume(taken);
      if (error == http::error::need_more || (!error && taken == 0)) break;
      if (error) return bad_request(error);
    }
    if (parser_->is_header_done() && refused()) return;
    if (parser_->is_done()) return handle();
    close_politely();
  }

  // Not the stream's own timeout, which closes the socket: a client that is too slow is told so.
  void arm(double seconds) {
    const uint64_t number = ++deadlines_;
    deadline_.expires_after(milliseconds(seconds));
    deadline_.async_wait([self = this->shared_from_this(), number](error_code error) {
      if (error || number != self->deadlines_) return;
      self->timed_out_ = true;
      error_code ignored;
      self->stream_.socket().cancel(ignored);
    });
  }
  void disarm() {
    ++deadlines_;
    deadline_.cancel();
  }

  void go_ahead() {
    static const std::string kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue), [self = this->shared_from_this()](error_code error, size_t) {
      if (error) return self->close();
      self->read_body();
    });
  }

  void read_body() {
    http::async_read(stream_, buffer_, *parser_, [self = this->shared_from_this()](error_code error, size_t) {
      if (error) return self->bad_request(error);
      self->disarm();
      self->handle();
    });
  }

  void bad_request(error_code error) {
    disarm();
    int status = 0;
    std::string message = error.message();
    if (error == http::error::body_limit) {
      status = 413;
      message = fmt::format("the request is larger than {} bytes", server_->options_.max_body_bytes);
    } else if (timed_out_) {
      if (!parser_->got_some() && buffer_.size() == 0) return close();  // idle
      status = 408;
      message = "the request did not arrive in time";
    } else if (error == http::error::header_limit) {
      status = 431;
    } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      status = 400;
      message = "this is no HTTP request: " + message;
    }
    if (status == 0 || gone_) return close();
    refuse(status, message);
  }

  // An answer of the server's own; what else the connection brings is not read.
  void refuse(int status, const std::string& message) {
    disarm();
    keep_alive_ = false;
    begin_answer();
    const std::string body = server_->error_body_(status, message);
    queue(number_, head_of(status, "application/json", {}, body.size()), body, true);
  }

  void begin_answer() {
    ++number_;
    answering_ = true;
    head_sent_ = false;
    filler_.clear();
    server_->answer_began();
  }

  void handle();

  std::string head_of(int status, const std::string& type, const HttpHeaders& headers, std::optional<size_t> length) {
    return make_head(status, type, headers, length, keep_alive(true), old_client_);
  }

 public:
  static std::string make_head(int status, const std::string& type, const HttpHeaders& headers,
                               std::optional<size_t> length, bool keep_alive, bool old_client) {
    std::string head =
        fmt::format("HTTP/1.1 {} {}\r\n", status, std::string(http::obsolete_reason(http::status(status))));
    if (!type.empty()) head += "Content-Type: " + type + "\r\n";
    for (const auto& [name, value] : headers) head += name + ": " + value + "\r\n";
    if (length)
      head += fmt::format("Content-Length: {}\r\n", *length);
    else if (!old_client)
      head += "Transfer-Encoding: chunked\r\n";
    head += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
    return head + "\r\n";
  }

 private:
  // While the answer is made nothing is expected from the client but the next request, or its end.
  void watch_client() {
    if (watching_ || gone_ || closed_) return;
    if (half_closed_) return probe();
    constexpr size_t kAhead = 64 * 1024;
    if (buffer_.size() >= kAhead) return probe();  // what ends behind all this is not seen
    watching_ = true;
    // On the socket itself: the stream's timeout is the writes'.
    stream_.socket().async_read_some(
        buffer_.prepare(4096),
        asio::bind_executor(stream_.get_executor(), [self = this->shared_from_this()](error_code error, size_t n) {
          self->watching_ = false;
          if (self->lingering_) return self->linger();
          if (!error) self->buffer_.commit(n);
          if (error == asio::error::eof)
            self->half_closed_ = true;
          else if (error && error != asio::error::operation_aborted)
            return self->client_gone();
          if (self->answering_) return self->watch_client();
          if (self->next_after_watch_) self->next_after_watch_ = false, self->read();
        }));
  }

  // The client sends no more: it has gone, or it shut its sending side and still reads. What tells is how its machine
  // takes what it is sent: with a reset where nobody reads. So now and then it gets something that means nothing: an
  // interim response, or, once there is a stream, a comment.
  void probe() {
    if (!answering_ || gone_ || closed_ || ending_ || (probed_ == number_)) return;
    if (old_client_ && !head_sent_) return client_gone();  // HTTP/1.0 knows no interim responses
    probed_ = number_;
    watch_errors();
    send_probe();
  }

  void send_probe() {
    static const std::string kInterim = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!answering_ || gone_ || closed_ || ending_) return;
    // A client that is out of reach says nothing at all.
    const int most = int(milliseconds(server_->options_.write_seconds).count());
    (void)setsockopt(stream_.socket().native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
    const std::string& piece = head_sent_ ? filler_ : kInterim;
    ++server_->probes_;
    if (!piece.empty()) out_.push_back(piece), write();
    probe_timer_.expires_after(milliseconds(server_->options_.probe_seconds));
    probe_timer_.async_wait([self = this->shared_from_this(), number = number_](error_code error) {
      if (!error && number == self->number_) self->send_probe();
    });
  }

  void watch_errors() {
    if (watching_errors_) return;
    watching_errors_ = true;
    stream_.socket().async_wait(tcp::socket::wait_error, [self = this->shared_from_this()](error_code error) {
      self->watching_errors_ = false;
      if (!error && self->answering_) self->client_gone();
    });
  }

  void wait_silent(uint64_t number, double seconds) {
    sent_since_ = false;
    timer_.expires_after(milliseconds(seconds));
    timer_.async_wait([self = this->shared_from_this(), number, seconds](error_code error) {
      if (error || number != self->number_ || !self->silent_) return;
      if (!self->sent_since_) self->silent_();
      self->wait_silent(number, seconds);
    });
  }

  void client_gone() {
    if (gone_) return;
    gone_ = true;
    auto all = std::move(on_gone_);
    on_gone_.clear();
    for (auto& gone : all) gone();
    if (answering_) ++server_->lost_;  // by now everybody knows
    end_answer();
    close();
  }

  void end_answer() {
    if (!answering_) return;
    answering_ = false;
    on_gone_.clear();
    silent_ = nullptr;
    timer_.cancel();
    probe_timer_.cancel();
    out_.clear();
    unsent_ = 0;
    server_->answer_ended();
  }

  void queue(uint64_t number, std::string head, std::string body, bool last) {
    if (number != number_ || !answering_ || gone_ || ending_) return;
    sent_since_ = true;
    unsent_ += head.size() + body.size();
    head_sent_ |= !head.empty();
    if (!head.empty()) out_.push_back(std::move(head));
    if (!body.empty()) out_.push_back(std::move(body));
    ending_ = last;
    if (unsent_ > server_->options_.max_unsent_bytes + (1u << 20) && !last) {
      server_->log_.warn("a client does not read its answer: dropped");
      return client_gone();
    }
    write();
  }

  void write() {
    if (writing_) return;
    if (out_.empty()) {
      if (ending_) finish();
      return;
    }
    writing_ = true;
    sending_.assign(std::make_move_iterator(out_.begin()), std::make_move_iterator(out_.end()));
    out_.clear();
    unsent_ = 0;
    std::vector<asio::const_buffer> buffers;
    for (const std::string& piece : sending_) buffers.push_back(asio::buffer(piece));
    stream_.expires_after(milliseconds(server_->options_.write_seconds));
    asio::async_write(stream_, buffers, [self = this->shared_from_this()](error_code error, size_t) {
      self->writing_ = false;
      self->stream_.expires_never();
      if (error) return self->client_gone();
      if (!self->gone_) self->write();
    });
  }

  void finish() {
    ending_ = false;
    end_answer();
    if (!keep_alive(true)) return close_politely();
    if (!watching_) return read();
    // The read that watched the client goes on as the read of the next request: it is cancelled, what came is kept.
    next_after_watch_ = true;
    error_code ignored;
    stream_.socket().cancel(ignored);
  }

  // What the client still sends is read for a while: a close with unread bytes is a reset, which may overtake the
  // answer.
  void close_politely() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    if (half_closed_ || server_->stopping_) return close();
    lingering_ = true;
    buffer_.consume(buffer_.size());
    timer_.expires_after(milliseconds(server_->options_.linger_seconds));
    timer_.async_wait([self = this->shared_from_this()](error_code error) {
      if (!error) self->close();
    });
    if (!watching_) linger();
  }
  void linger() {
    if (closed_) return;
    stream_.socket().async_read_some(
        buffer_.prepare(16 * 1024),
        asio::bind_executor(stream_.get_executor(), [self = this->shared_from_this()](error_code error, size_t) {
          if (error) {
            self->timer_.cancel();
            return self->close();
          }
          self->linger();
        }));
  }
  void close() {
    closed_ = true;
    error_code ignored;
    stream_.socket().close(ignored);
  }

  Impl* server_;  // outlives all connections
  beast::tcp_stream stream_;
  // A body is taken out as it comes; a head, and what stands beside chunks, has to be whole in here.
  static constexpr size_t kMostBuffered = 1 << 20;
  beast::flat_buffer buffer_{kMostBuffered};
  std::optional<http::request_parser<http::string_body>> parser_;
  uint64_t number_ = 0;
  bool answering_ = false, ending_ = false, writing_ = false, watching_ = false, next_after_watch_ = false;
  bool gone_ = false, closed_ = false, keep_alive_ = true, old_client_ = false;
  bool half_closed_ = false, watching_errors_ = false, head_sent_ = false, lingering_ = false;
  uint64_t probed_ = 0;  ///< the answer for which it is being found out whether the client reads
  std::string filler_;
  std::deque<std::string> out_;
  std::vector<std::string> sending_;
  size_t unsent_ = 0;
  std::vector<std::function<void()>> on_gone_;
  asio::steady_timer timer_{stream_.get_executor()}, probe_timer_{stream_.get_executor()},
      deadline_{stream_.get_executor()};
  uint64_t deadlines_ = 0;  ///< only the last one counts
  bool timed_out_ = false;
  std::function<void()> silent_;
  bool sent_since_ = false;
};

template <class Impl>
class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<Connection<Impl>> connection, uint64_t number, bool head_only)
      : connection_(std::move(connection)), number_(number), head_only_(head_only) {}
  // One that nobody answered.
  ~Reply() override {
    if (!begun_ && !connection_->stopping()) send(500, "text/plain", "no answer was made\n", {});
  }

  void send(int status, const std::string& type, std::string body, const HttpHeaders& headers) override {
    if (begun_.exchange(true)) return;
    std::string head = Connection<Impl>::make_head(status, type, headers, body.size(), connection_->keep_alive(true),
                                                   connection_->is_old_client());
    connection_->send(number_, std::move(head), head_only_ ? std::string() : std::move(body), true);
  }
  void begin(int status, const std::string& type, const HttpHeaders& headers, const std::string& filler) override {
    if (begun_.exchange(true)) return;
    chunked_ = !connection_->is_old_client();
    connection_->send(number_,
                      Connection<Impl>::make_head(status, type, headers, {}, connection_->keep_alive(chunked_),
                                                  connection_->is_old_client()),
                      "", false, chunked_ && !filler.empty() ? chunk(filler) : filler);
  }
  void write(std::string piece) override {
    if (piece.empty()) return;
    connection_->send(number_, "", chunked_ ? chunk(piece) : std::move(piece), false);
  }
  void end() override { connection_->send(number_, "", chunked_ ? "0\r\n\r\n" : "", true); }
  void post(std::function<void()> work) override { connection_->post(std::move(work)); }
  void on_gone(std::function<void()> gone) override { connection_->watch(number_, std::move(gone)); }
  void when_silent(double seconds, std::function<void()> silent) override {
    connection_->when_silent(number_, seconds, std::move(silent));
  }

 private:
  std::shared_ptr<Connection<Impl>> connection_;
  uint64_t number_;
  bool head_only_, chunked_ = true;
  std::atomic<bool> begun_{false};
};

template <class Impl>
void Connection<Impl>::handle() {
  stream_.expires_never();
  auto message = parser_->release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  std::string target(message.target());
  if (target.starts_with("http://") || target.starts_with("https://")) {  // as proxies are asked
    const size_t path = target.find('/', target.find("//") + 2);
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) {
    const auto [at, first] = request.headers.emplace(lower(std::string(field.name_string())), field.value());
    if (!first) at->second += "," + std::string(field.value());
  }
  request.body = std::move(message.body());
  keep_alive_ = message.keep_alive();
  old_client_ = message.version() < 11;
  if (old_client_) keep_alive_ = false;
  begin_answer();
  watch_client();
  auto reply = std::make_shared<Reply<Impl>>(this->shared_from_this(), number_, request.method == "HEAD");
  try {
    server_->handler_(std::move(request), reply);
  } catch (const std::exception& error) {
    server_->log_.error("a request failed: {}", error.what());
    reply->send(500, "application/json", server_->error_body_(500, error.what()), {});
  }
}

}  // namespace

void HttpServer::Impl::start() {
  error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  EF_CHECK(!error && !found.empty(), ConfigError, "host: \"{}\" is no address of this machine: {}", options_.host,
           error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  EF_CHECK(!error, ConfigError, "cannot listen on {} port {}: {}", options_.host, options_.port, error.message());
  port_ = acceptor_.local_endpoint().port();
  accept();
  for (int i = 0; i < std::max(1, options_.threads); ++i) threads_.emplace_back([this] { io_.run(); });
}

void HttpServer::Impl::accept() {
  acceptor_.async_accept(asio::make_strand(io_), [self = this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || self->draining_) return;
    if (!error) {
      std::make_shared<Connection<Impl>>(std::move(socket), self)->start();
      return self->accept();
    }
    // Out of descriptors, most likely: others will end.
    self->log_.warn("a connection could not be taken: {}", error.message());
    self->retry_.expires_after(std::chrono::milliseconds(100));
    self->retry_.async_wait([self](error_code e) {
      if (!e) self->accept();
    });
  });
}

bool HttpServer::Impl::drain() {
  draining_ = true;
  asio::post(acceptor_.get_executor(), [this] {
    error_code ignored;
    acceptor_.close(ignored);
  });
  std::unique_lock lock(mutex_);
  return quiet_.wait_for(lock, milliseconds(options_.drain_seconds), [&] { return answers_ == 0; });
}

void HttpServer::Impl::stop() {
  draining_ = stopping_ = true;
  io_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

HttpServer::HttpServer(const HttpOptions& options, Handler handler, ErrorBody error_body, const Log& log)
    : impl_(std::make_unique<Impl>(options, std::move(handler), std::move(error_body), log)) {
  impl_->start();
}

HttpServer::~HttpServer() { impl_->stop(); }

int HttpServer::port() const { return impl_->port_; }
bool HttpServer::drain() { return impl_->drain(); }
size_t HttpServer::open_connections() const { return impl_->connections_; }
uint64_t HttpServer::lost_clients() const { return impl_->lost_; }
uint64_t HttpServer::probes() const { return impl_->probes_; }

}  // namespace ef::server
