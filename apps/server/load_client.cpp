#include "apps/server/load_client.h"

#include "apps/server/asio.h"

#include <array>
#include <charconv>
#include <chrono>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"

namespace ef::server {

LoadTarget parse_target(const std::string& url, const std::string& endpoint, const std::string& flag) {
  constexpr std::string_view kScheme = "http://";
  constexpr int kHttpPort = 80, kMostPort = 65535;
  LoadTarget t;
  EF_CHECK(url.starts_with(kScheme), ConfigError, "{}: expected http://host:port, found \"{}\"", flag, url);
  std::string rest = url.substr(kScheme.size());
  const size_t slash = rest.find('/');
  if (slash != std::string::npos) {
    t.path = rest.substr(slash);
    rest.resize(slash);
    while (t.path.ends_with('/')) t.path.pop_back();
  }
  t.path += endpoint;
  const size_t bracket = rest.find(']');  // [::1]:8080
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  t.host = rest.substr(0, colon);
  if (t.host.starts_with('[') && t.host.ends_with(']')) t.host = t.host.substr(1, t.host.size() - 2);
  t.port = kHttpPort;
  if (colon != std::string::npos) {
    const char* end = rest.data() + rest.size();
    const auto [at, error] = std::from_chars(rest.data() + colon + 1, end, t.port);
    EF_CHECK(error == std::errc() && at == end && t.port > 0 && t.port <= kMostPort, ConfigError,
             "{}: expected a port of 1 to {}, found \"{}\"", flag, kMostPort, url);
  }
  EF_CHECK(!t.host.empty(), ConfigError, "{}: expected http://host:port, found \"{}\"", flag, url);
  return t;
}

namespace {

// The bytes of an answer: head, chunks, events. Takes them as they come.
class Stream {
 public:
  int status = 0;
  bool ended = false;
  std::string body;  ///< of what has been unpacked and not yet been taken

  void push(std::string_view bytes) {
    raw_ += bytes;
    if (status == 0 && !head()) return;
    if (!chunked_) {
      body += raw_;
      if (length_ >= 0 && int64_t(body.size()) >= length_) ended = true;
      raw_.clear();
      return;
    }
    while (!ended) {
      const size_t line = raw_.find("\r\n");
      if (line == std::string::npos) return;
      size_t size = 0;
      std::from_chars(raw_.data(), raw_.data() + line, size, 16);
      if (raw_.size() < line + 2 + size + 2) return;
      body.append(raw_, line + 2, size);
      raw_.erase(0, line + 2 + size + 2);
      ended = size == 0;
    }
  }

 private:
  bool head() {
    const size_t end = raw_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    std::string text = raw_.substr(0, end + 2);
    for (char& c : text) c = char(std::tolower(c));
    raw_.erase(0, end + 4);
    const size_t space = text.find(' ');
    status = space == std::string::npos ? -1 : std::atoi(text.c_str() + space);
    chunked_ = text.find("transfer-encoding: chunked") != std::string::npos;
    if (const size_t at = text.find("content-length:"); at != std::string::npos)
      length_ = std::atoll(text.c_str() + at + std::string_view("content-length:").size());
    return true;
  }
  std::string raw_;
  bool chunked_ = false;
  int64_t length_ = -1;
};

class Load;

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Load& load, size_t index) : load_(load), index_(index) {}
  void start();

 private:
  void read();
  void take();
  void event(const std::string& text);
  void done(const std::string& error);
  LoadRecord& record();
  Load& load_;
  size_t index_;
  std::unique_ptr<tcp::socket> socket_;
  std::unique_ptr<asio::steady_timer> timer_;
  std::string request_;
  std::array<char, 16384> buffer_{};
  Stream stream_;
  double last_ = 0;
  bool over_ = false, saw_end_ = false;
};

class Load {
 public:
  Load(const LoadTarget& target, const std::vector<LoadRequest>& requests, int in_flight, double timeout)
      : target(target), requests(requests), timeout(timeout), records(requests.size()), in_flight_(in_flight) {}

  std::vector<LoadRecord> run() {
    tcp::resolver resolver(io);
    error_code error;
    endpoints = resolver.resolve(target.host, std::to_string(target.port), error);
    EF_CHECK(!error, ConfigError, "--url: {}: {}", target.host, error.message());
    start_ = std::chrono::steady_clock::now();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].at < 0) {
        due_.push_back(i);
        continue;
      }
      auto timer =
          std::make_shared<asio::steady_timer>(io, start_ + std::chrono::nanoseconds(int64_t(requests[i].at * 1e9)));
      timer->async_wait([this, i, timer](error_code) {
        records[i].due = requests[i].at;
        due_.push_back(i);
        go();
      });
    }
    go();
    io.run();
    return std::move(records);
  }
  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  void ended() {
    --open_;
    go();
  }

  asio::io_context io;
  const LoadTarget& target;
  const std::vector<LoadRequest>& requests;
  double timeout;
  std::vector<LoadRecord> records;
  tcp::resolver::results_type endpoints;

 private:
  void go() {
    while (!due_.empty() && (in_flight_ == 0 || open_ < in_flight_)) {
      const size_t i = due_.front();
      due_.pop_front();
      ++open_;
      if (requests[i].at < 0) records[i].due = now();
      std::make_shared<Session>(*this, i)->start();
    }
  }
  int in_flight_, open_ = 0;
  std::deque<size_t> due_;
  std::chrono::steady_clock::time_point start_;
};

LoadRecord& Session::record() { return load_.records[index_]; }

void Session::start() {
  socket_ = std::make_unique<tcp::socket>(load_.io);
  timer_ = std::make_unique<asio::steady_timer>(load_.io, std::chrono::nanoseconds(int64_t(load_.timeout * 1e9)));
  timer_->async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->done("no answer in time");
  });
  const std::string& body = load_.requests[index_].body;
  request_ = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nConnection: close\r\n{}Content-Length: "
      "{}\r\n\r\n{}",
      load_.target.path, load_.target.host, load_.target.port,
      load_.target.api_key.empty() ? "" : "Authorization: Bearer " + load_.target.api_key + "\r\n", body.size(), body);
  asio::async_connect(*socket_, load_.endpoints, [self = shared_from_this()](error_code error, const tcp::endpoint&) {
    if (error) return self->done("cannot connect: " + error.message());
    asio::async_write(*self->socket_, asio::buffer(self->request_), [self](error_code e, size_t) {
      if (e) return self->done("cannot send: " + e.message());
      self->read();
    });
  });
}

void Session::read() {
  socket_->async_read_some(asio::buffer(buffer_), [self = shared_from_this()](error_code error, size_t n) {
    self->stream_.push({self->buffer_.data(), n});
    self->record().status = self->stream_.status;
    if (self->stream_.status == 200) self->take();
    if (self->stream_.ended || error) {
      if (self->stream_.status < 100) return self->done("no answer of HTTP");
      if (self->stream_.status != 200)
        return self->done(fmt::format("status {}: {}", self->stream_.status, self->stream_.body.substr(0, 300)));
      return self->done(self->saw_end_ ? "" : "the stream broke off");
    }
    self->read();
  });
}

void Session::take() {
  std::string& body = stream_.body;
  for (size_t end = 0; (end = body.find("\n\n")) != std::string::npos; body.erase(0, end + 2)) {
    constexpr std::string_view kData = "data: ";
    if (!body.starts_with(kData)) continue;
    try {
      event(body.substr(kData.size(), end - kData.size()));
    } catch (const nlohmann::json::exception&) {
      done("an event of another form than OpenAI's");
    }
  }
}

void Session::event(const std::string& text) {
  if (text == "[DONE]") {
    saw_end_ = true;
    return;
  }
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return done("an event that is no JSON");
  if (json.contains("error")) return done(json["error"].value("message", "an error without message"));
  LoadRecord& r = record();
  if (json.contains("usage") && json["usage"].is_object()) {
    r.prompt_tokens = json["usage"].value("prompt_tokens", int64_t(0));
    r.output_tokens = json["usage"].value("completion_tokens", int64_t(0));
    r.cached_tokens = json.value("/usage/prompt_tokens_details/cached_tokens"_json_pointer, int64_t(0));
  }
  if (!json.contains("choices") || json["choices"].empty()) return;
  const auto& choice = json["choices"][0];
  const auto some = [](const nlohmann::json& at, const char* key) {
    return at.is_object() && at.contains(key) && at[key].is_string() && !at[key].get_ref<const std::string&>().empty();
  };
  const nlohmann::json delta = choice.value("delta", nlohmann::json());
  if (!some(choice, "text") && !some(delta, "content") && !some(delta, "reasoning_content")) return;
  const double now = load_.now();
  if (r.first == 0)
    r.first = now;
  else
    r.gaps.push_back(now - last_);
  last_ = now;
}

void Session::done(const std::string& error) {
  if (over_) return;
  over_ = true;
  record().end = load_.now();
  record().error = error;
  timer_->cancel();
  error_code ignored;
  socket_->close(ignored);
  load_.ended();
}

}  // namespace

std::vector<LoadRecord> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests, int in_flight,
                                 double timeout_seconds) {
  return Load(target, requests, in_flight, timeout_seconds).run();
}

}  // namespace ef::server
