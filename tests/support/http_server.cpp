#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <stdexcept>

namespace ef::testing {

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || ::bind(listener_, any, size) != 0 || ::listen(listener_, 16) != 0 ||
      ::getsockname(listener_, any, &size) != 0)
    throw std::runtime_error("cannot listen on 127.0.0.1");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  stop_ = true;
  ::shutdown(listener_, SHUT_RDWR);  // wakes accept
  thread_.join();
  ::close(listener_);
}

std::string HttpServer::url() const { return "http://127.0.0.1:" + std::to_string(port_); }

std::vector<ServedRequest> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

// One connection after another: an answer closes its connection, so none waits long.
void HttpServer::accept_all() {
  while (!stop_) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    serve(connection);
    ::close(connection);
  }
}

void HttpServer::serve(int connection) {
  std::string text;
  char buffer[4096];
  while (text.find("\r\n\r\n") == std::string::npos) {
    const ssize_t n = ::recv(connection, buffer, sizeof(buffer), 0);
    if (n <= 0) return;
    text.append(buffer, size_t(n));
    if (text.front() != 'G' && text.front() != 'P') {  // a TLS greeting
      constexpr char kPlain[] = "HTTP/1.1 400 plain HTTP only\r\n\r\n";
      (void)!::send(connection, kPlain, sizeof(kPlain) - 1, MSG_NOSIGNAL);
      return;
    }
  }
  ServedRequest request;
  std::istringstream lines(text);
  std::string method, version, line;
  lines >> method >> request.path >> version;
  std::getline(lines, line);
  while (std::getline(lines, line) && line != "\r") {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    const size_t begin = line.find_first_not_of(' ', colon + 1), end = line.find_last_not_of("\r ");
    request.headers[name] = begin <= end ? line.substr(begin, end - begin + 1) : "";
  }
  if (const std::string length = request.header("content-length"); !length.empty()) {
    request.body = text.substr(text.find("\r\n\r\n") + 4);
    while (request.body.size() < std::stoul(length)) {
      const ssize_t n = ::recv(connection, buffer, sizeof(buffer), 0);
      if (n <= 0) return;
      request.body.append(buffer, size_t(n));
    }
  }
  ServedAnswer answer;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    answer = handler_(request);
  }
  std::string out = "HTTP/1.1 " + std::to_string(answer.status) + " status\r\nConnection: close\r\n";
  out += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n";
  for (const auto& [name, value] : answer.headers) out += name + ": " + value + "\r\n";
  out += "\r\n" + answer.body.substr(0, answer.cut_after.value_or(answer.body.size()));
  for (size_t sent = 0; sent < out.size();) {
    const ssize_t n = ::send(connection, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += size_t(n);
  }
  ::shutdown(connection, SHUT_WR);
  while (::recv(connection, buffer, sizeof(buffer), 0) > 0) {
  }
}

ServedAnswer serve_file(const ServedRequest& request, const std::string& body, const std::string& tag) {
  ServedAnswer answer;
  answer.headers.emplace_back("ETag", tag);
  const std::string range = request.header("range");
  const bool same = request.headers.count("if-range") == 0 || request.header("if-range") == tag;
  if (!range.starts_with("bytes=") || !same) {
    answer.body = body;
    return answer;
  }
  const size_t first = std::stoul(range.substr(6));
  if (first >= body.size()) {
    answer.status = 416;
    answer.headers.emplace_back("Content-Range", "bytes */" + std::to_string(body.size()));
    return answer;
  }
  answer.status = 206;
  answer.body = body.substr(first);
  answer.headers.emplace_back("Content-Range", "bytes " + std::to_string(first) + "-" +
                                                   std::to_string(body.size() - 1) + "/" + std::to_string(body.size()));
  return answer;
}

}  // namespace ef::testing
