#include "apps/server/tracing/otlp_http.h"

#include "apps/server/asio.h"

#include <boost/beast.hpp>
#include <charconv>
#include <mutex>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"

namespace ef::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;

SendResult read_otlp_answer(int status, const std::string& body, const std::string& retry_after) {
  using Kind = SendResult::Kind;
  SendResult result;
  if (status >= 200 && status < 300) {
    const auto json = nlohmann::json::parse(body, nullptr, false);
    if (!json.is_object() || !json.contains("partialSuccess") || !json["partialSuccess"].is_object()) return result;
    const auto& partial = json["partialSuccess"];
    const auto rejected = partial.find("rejectedSpans");  // a 64-bit integer: text, or a number
    if (rejected != partial.end() && rejected->is_number_unsigned()) result.rejected = rejected->get<uint64_t>();
    if (rejected != partial.end() && rejected->is_string()) {
      const std::string& text = rejected->get_ref<const std::string&>();
      std::from_chars(text.data(), text.data() + text.size(), result.rejected);
    }
    const auto message = partial.find("errorMessage");
    if (message != partial.end() && message->is_string()) result.error = message->get<std::string>();
    return result;
  }
  const bool again = status == 429 || status == 502 || status == 503 || status == 504;
  result.kind = again ? Kind::kLater : Kind::kRefused;
  constexpr size_t kMostText = 200;
  result.error = fmt::format("status {}{}{}", status, body.empty() ? "" : ": ", body.substr(0, kMostText));
  int seconds = 0;
  const auto [at, error] = std::from_chars(retry_after.data(), retry_after.data() + retry_after.size(), seconds);
  if (again && error == std::errc() && at == retry_after.data() + retry_after.size() && seconds >= 0)
    result.retry_after = std::chrono::seconds(seconds);
  return result;
}

namespace {

// One export on a connection of its own.
class Post {
 public:
  Post(asio::io_context& io, const OtlpTarget& target, const std::string& body) : resolver_(io), stream_(io) {
    request_.method(http::verb::post);
    request_.target(target.where.path);
    request_.version(11);
    request_.set(http::field::host, fmt::format("{}:{}", target.where.host, target.where.port));
    request_.set(http::field::content_type, "application/json");
    request_.set(http::field::user_agent, "OTLP-Exporter-ExpertFlow");
    for (const auto& [name, value] : target.headers) request_.set(name, value);
    request_.body() = body;
    request_.prepare_payload();
    request_.keep_alive(false);
    constexpr uint64_t kMostAnswer = 64 * 1024;
    parser_.body_limit(kMostAnswer);
    resolver_.async_resolve(target.where.host, std::to_string(target.where.port),
                            [this](error_code error, const tcp::resolver::results_type& found) {
                              if (error) return fail("resolve", error);
                              connect(found);
                            });
  }
  /// Nothing: it has not come to an end.
  const std::optional<SendResult>& result() const { return result_; }

 private:
  void connect(const tcp::resolver::results_type& found) {
    stream_.async_connect(found, [this](error_code error, const tcp::endpoint&) {
      if (error) return fail("connect", error);
      http::async_write(stream_, request_, [this](error_code e, size_t) {
        if (e) return fail("send", e);
        read();
      });
    });
  }
  void read() {
    http::async_read(stream_, buffer_, parser_, [this](error_code error, size_t) {
      // An answer that is too long, or cut short, has its status all the same.
      if (error && !parser_.is_header_done()) return fail("read the answer", error);
      const auto& answer = parser_.get();
      result_ = read_otlp_answer(answer.result_int(), error ? std::string() : answer.body(),
                                 std::string(answer[http::field::retry_after]));
    });
  }
  void fail(const char* what, error_code error) {
    result_ = SendResult{SendResult::Kind::kLater, 0, {}, fmt::format("cannot {}: {}", what, error.message())};
  }
  tcp::resolver resolver_;
  beast::tcp_stream stream_;
  http::request<http::string_body> request_;
  http::response_parser<http::string_body> parser_;
  beast::flat_buffer buffer_;
  std::optional<SendResult> result_;
};

class OtlpHttp final : public SpanTransport {
 public:
  OtlpHttp(OtlpTarget target, double seconds) : target_(std::move(target)), seconds_(seconds) {}

  SendResult send(const std::string& json) override {
    asio::io_context io;
    const std::string where =
        fmt::format("http://{}:{}{}: ", target_.where.host, target_.where.port, target_.where.path);
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_) return {SendResult::Kind::kLater, 0, {}, where + "the server is shutting down"};
      io_ = &io;
    }
    std::optional<SendResult> result;
    {
      Post post(io, target_, json);
      io.run_for(std::chrono::nanoseconds(int64_t(seconds_ * 1e9)));
      result = post.result();
    }
    {
      const std::lock_guard lock(mutex_);
      io_ = nullptr;
    }
    if (!result) return {SendResult::Kind::kLater, 0, {}, where + "no answer in time"};
    if (!result->error.empty()) result->error = where + result->error;
    return *result;
  }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (io_) io_->stop();
  }

 private:
  OtlpTarget target_;
  double seconds_;
  std::mutex mutex_;
  asio::io_context* io_ = nullptr;
  bool cancelled_ = false;
};

}  // namespace

std::unique_ptr<SpanTransport> make_otlp_http(OtlpTarget target, double seconds) {
  return std::make_unique<OtlpHttp>(std::move(target), seconds);
}

}  // namespace ef::server
