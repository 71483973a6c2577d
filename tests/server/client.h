// A raw HTTP client: bytes as one writes them, answers as they come, and connections that are cut when one likes.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace ef::testing {

using Json = nlohmann::ordered_json;

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
  Json json() const { return Json::parse(body); }
  /// The data of a stream's events; comments are left out.
  std::vector<std::string> events() const {
    std::vector<std::string> all;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      if (end == std::string::npos) throw std::runtime_error("a stream's last event does not end: " + body.substr(at));
      const std::string event = body.substr(at, end - at);
      if (event.starts_with("data: "))
        all.push_back(event.substr(6));
      else if (!event.starts_with(":"))
        throw std::runtime_error("no event: " + event);
      at = end + 2;
    }
    return all;
  }
  std::vector<Json> chunks() const {
    std::vector<Json> all;
    for (const std::string& event : events())
      if (event != "[DONE]") all.push_back(Json::parse(event));
    return all;
  }
};

class Client {
 public:
  explicit Client(int port) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval limit{60, 0};  // a test that waits for ever is no test
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot connect");
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  /// Nothing more is sent; answers are still read.
  void shut_sending() { ::shutdown(fd_, SHUT_WR); }

  void send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw std::runtime_error("cannot send");
      at += size_t(n);
    }
  }
  static std::string request(const std::string& method, const std::string& path, const std::string& body = "",
                             const std::string& headers = "") {
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
    if (!body.empty() || method == "POST")
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    return text + "\r\n" + body;
  }
  HttpAnswer get(const std::string& path, const std::string& headers = "") {
    send(request("GET", path, "", headers));
    return answer();
  }
  HttpAnswer post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send(request("POST", path, body, headers));
    return answer();
  }
  HttpAnswer post(const std::string& path, const Json& body, const std::string& headers = "") {
    return post(path, body.dump(), headers);
  }

  /// The next answer on this connection, whole. Interim responses before it are counted.
  HttpAnswer answer() {
    HttpAnswer a;
    std::string head = until("\r\n\r\n");
    for (; head.starts_with("HTTP/1.1 100 "); ++interim_) head = until("\r\n\r\n");
    a.status = std::stoi(head.substr(head.find(' ') + 1));
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t end = head.find("\r\n", at);
      if (end == at || end == std::string::npos) break;
      const size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = char(std::tolower(c));
      a.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (a.headers.contains("content-length")) {
      a.body = exactly(size_t(std::stoul(a.headers["content-length"])));
    } else if (a.headers["transfer-encoding"] == "chunked") {
      for (;;) {
        const std::string line = until("\r\n");
        const size_t size = std::stoul(line, nullptr, 16);
        a.body += exactly(size);
        exactly(2);
        if (size == 0) break;
      }
    } else {
      while (more()) {
      }
      a.body = std::move(held_);
    }
    return a;
  }
  /// Waits until so many bytes of whatever answer have come.
  void wait_bytes(size_t n) {
    while (held_.size() < n)
      if (!more()) throw std::runtime_error("the connection ended");
  }
  /// All that still comes, up to the connection's end (also an abrupt one).
  std::string rest() {
    try {
      while (more()) {
      }
    } catch (const std::runtime_error&) {
      if (errno == EAGAIN) throw;
    }
    return std::move(held_);
  }
  int interim_responses() const { return interim_; }
  /// Whether the server has closed it.
  bool at_end() { return held_.empty() && !more(); }

 private:
  bool more() {
    char buffer[16384];
    ssize_t n = 0;
    do n = ::recv(fd_, buffer, sizeof buffer, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0) throw std::runtime_error(std::string("no answer came: ") + std::strerror(errno));
    held_.append(buffer, size_t(n));
    return n > 0;
  }
  std::string until(const std::string& mark) {
    for (;;) {
      if (const size_t at = held_.find(mark); at != std::string::npos) return exactly(at + mark.size());
      if (!more()) throw std::runtime_error("the connection ended before \"" + mark + "\": " + held_);
    }
  }
  std::string exactly(size_t n) {
    wait_bytes(n);
    std::string out = held_.substr(0, n);
    held_.erase(0, n);
    return out;
  }
  int fd_ = -1, interim_ = 0;
  std::string held_;
};

}  // namespace ef::testing
