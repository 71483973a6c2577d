#include "apps/server/tracing/request_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <random>

namespace ef::server {

TraceSources real_trace_sources() {
  static const SteadyClock kClock;
  TraceSources sources;
  sources.clock = &kClock;
  sources.unix_nanos = [] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  };
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
  sources.random = [random = std::mt19937_64(seed)]() mutable { return random(); };
  return sources;
}

Tracer::Tracer(std::unique_ptr<SpanExporter> exporter, double sample, TraceSources sources)
    : exporter_(std::move(exporter)), sample_(sample), sources_(std::move(sources)) {}

std::string Tracer::hex_id(int words) {
  const std::lock_guard lock(random_mutex_);
  for (;;) {
    std::string id;
    uint64_t any = 0;
    for (int i = 0; i < words; ++i) {
      const uint64_t word = sources_.random();
      any |= word;
      id += fmt::format("{:016x}", word);
    }
    if (any != 0) return id;  // zero is no id
  }
}

// As OpenTelemetry's consistent sampling: the last 56 bits of the id against a threshold, so that all who go by the
// same share choose the same traces.
bool Tracer::is_sampled(const std::string& trace_id) const {
  constexpr size_t kDigits = 14;
  uint64_t tail = 0;
  std::from_chars(trace_id.data() + trace_id.size() - kDigits, trace_id.data() + trace_id.size(), tail, 16);
  return double(tail) >= (1 - sample_) * 0x1p56;
}

std::shared_ptr<RequestTrace> Tracer::begin(const HttpRequest& request, std::string_view route) {
  TraceContext context;
  std::string parent;
  if (const auto caller = parse_traceparent(request.header("traceparent"))) {
    context = *caller;
    parent = caller->span_id;
    context.state = parse_tracestate(request.header("tracestate")).value_or("");
  } else {
    context.trace_id = hex_id(2);
    context.sampled = is_sampled(context.trace_id);
  }
  context.sampled &= exporter_ != nullptr || !parent.empty();
  context.span_id = hex_id(1);
  return std::make_shared<RequestTrace>(shared_from_this(), std::move(context), std::move(parent), request, route);
}

void Tracer::end(const RequestTrace& trace) {
  if (!exporter_) return;
  if (!trace.context_.sampled && !trace.failed_) {
    ++dropped_;
    return;
  }
  ++(trace.context_.sampled ? sampled_ : failed_);
  exporter_->offer(trace.spans());
}

TraceCounts Tracer::counts() const { return {sampled_, failed_, dropped_}; }

std::optional<ExportCounts> Tracer::export_counts() const {
  if (!exporter_) return std::nullopt;
  return exporter_->counts();
}

void Tracer::shutdown(Duration most) {
  if (exporter_) exporter_->shutdown(most);
}

namespace {

constexpr int kServerError = 500;  // and above

// server.address and server.port, as the client wrote them.
void add_host(Attributes& to, const std::string& host) {
  const size_t bracket = host.find(']');
  const size_t colon = host.find(':', bracket == std::string::npos ? 0 : bracket);
  if (host.empty()) return;
  to.emplace_back("server.address", host.substr(0, colon));
  int64_t port = 0;
  if (colon == std::string::npos) return;
  const auto [at, error] = std::from_chars(host.data() + colon + 1, host.data() + host.size(), port);
  if (error == std::errc() && at == host.data() + host.size()) to.emplace_back("server.port", port);
}

}  // namespace

RequestTrace::RequestTrace(std::shared_ptr<Tracer> tracer, TraceContext context, std::string parent_id,
                           const HttpRequest& request, std::string_view route)
    : tracer_(std::move(tracer)),
      context_(std::move(context)),
      parent_id_(std::move(parent_id)),
      name_(fmt::format("{} {}", request.method, route)),
      begin_(tracer_->sources_.clock->now()),
      begin_unix_(tracer_->sources_.unix_nanos()) {
  http_ = {{"http.request.method", request.method},
           {"http.route", std::string(route)},
           {"url.path", request.path},
           {"url.scheme", "http"},
           {"http.request.body.size", int64_t(request.body.size())}};
  if (!request.query.empty()) http_.emplace_back("url.query", request.query);
  add_host(http_, request.header("host"));
  if (const std::string agent = request.header("user-agent"); !agent.empty())
    http_.emplace_back("user_agent.original", agent);
}

RequestTrace::~RequestTrace() {
  if (end_.count() == 0) end_ = tracer_->sources_.clock->now();
  tracer_->end(*this);
}

std::string RequestTrace::traceparent() const {
  const std::lock_guard lock(mutex_);
  TraceContext own = context_;
  own.sampled |= failed_ && tracer_->exporter_;
  return traceparent_of(own);
}

void RequestTrace::describe(std::string operation, std::string model, Attributes attributes) {
  const std::lock_guard lock(mutex_);
  operation_ = std::move(operation), model_ = std::move(model), asked_ = std::move(attributes);
}

void RequestTrace::answered(int status) {
  const std::lock_guard lock(mutex_);
  status_ = status;
  failed_ |= status >= kServerError;
}

void RequestTrace::ended(bool client_gone) {
  const std::lock_guard lock(mutex_);
  if (end_.count() > 0) return;
  end_ = tracer_->sources_.clock->now();
  gone_ = client_gone;
}

void RequestTrace::failed(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (message_.empty()) message_ = message;
}

void RequestTrace::on_error(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    error_ = e.what();
  }
}

void RequestTrace::on_end(const CompletionTimes& times, const char* finish) {
  const std::lock_guard lock(mutex_);
  answers_.push_back({times, finish, ""});
  if (answers_.back().finish != "error") return;
  failed_ = true;
  answers_.back().error = error_;
  if (message_.empty()) message_ = error_;
}

uint64_t RequestTrace::unix_at(Duration time) const {
  return begin_unix_ + uint64_t(std::max<int64_t>(0, (time - begin_).count()));
}

TraceSpan RequestTrace::child(const TraceSpan& parent, std::string name, Duration begin, Duration end) const {
  TraceSpan span;
  span.trace_id = context_.trace_id;
  span.span_id = tracer_->hex_id(1);
  span.parent_id = parent.span_id;
  span.trace_state = context_.state;
  span.name = std::move(name);
  span.begin = unix_at(begin);
  span.end = std::max(span.begin, unix_at(end));
  return span;
}

// Names of OpenTelemetry's conventions for generative AI; latencies as vLLM names them.
void RequestTrace::add_answer(const Answer& answer, const TraceSpan& root, std::vector<TraceSpan>& all) const {
  const CompletionTimes& t = answer.times;
  const bool started = t.started.count() > 0, spoke = t.first_token.count() > 0;
  TraceSpan span = child(root, operation_ + " " + model_, t.submitted, t.ended);
  span.attributes = {{"gen_ai.operation.name", operation_},
                     {"gen_ai.provider.name", "expertflow"},
                     {"gen_ai.request.model", model_},
                     {"gen_ai.response.model", model_},
                     {"gen_ai.usage.input_tokens", t.prompt_tokens},
                     {"gen_ai.usage.output_tokens", t.generated_tokens},
                     {"gen_ai.usage.cache_read.input_tokens", t.cached_tokens},
                     {"gen_ai.response.finish_reasons", std::vector<std::string>{answer.finish}},
                     {"gen_ai.latency.time_in_queue", seconds((started ? t.started : t.ended) - t.submitted)},
                     {"gen_ai.latency.e2e", seconds(t.ended - t.submitted)},
                     {"expertflow.expert.stall_seconds", t.prefill_stall + t.decode_stall}};
  span.attributes.insert(span.attributes.end(), asked_.begin(), asked_.end());
  if (spoke) span.attributes.emplace_back("gen_ai.latency.time_to_first_token", seconds(t.first_token - t.submitted));
  if (answer.finish == "error") {
    span.status = TraceSpan::Status::kError;
    span.message = answer.error;
    span.attributes.emplace_back("error.type", "_OTHER");
  }
  std::vector<TraceSpan> parts;
  parts.push_back(child(span, "queue", t.submitted, started ? t.started : t.ended));
  if (started) {
    TraceSpan prefill = child(span, "prefill", t.started, spoke ? t.first_token : t.ended);
    prefill.attributes = {{"gen_ai.usage.input_tokens", t.prompt_tokens},
                          {"gen_ai.usage.cache_read.input_tokens", t.cached_tokens},
                          {"expertflow.expert.stall_seconds", t.prefill_stall}};
    parts.push_back(std::move(prefill));
  }
  if (spoke) {
    TraceSpan decode = child(span, "decode", t.first_token, t.ended);
    decode.attributes = {{"gen_ai.usage.output_tokens", t.generated_tokens},
                         {"expertflow.expert.stall_seconds", t.decode_stall}};
    parts.push_back(std::move(decode));
  }
  all.push_back(std::move(span));
  std::move(parts.begin(), parts.end(), std::back_inserter(all));
}

std::vector<TraceSpan> RequestTrace::spans() const {
  TraceSpan root;
  root.trace_id = context_.trace_id;
  root.span_id = context_.span_id;
  root.parent_id = parent_id_;
  root.trace_state = context_.state;
  root.name = name_;
  root.kind = TraceSpan::Kind::kServer;
  root.begin = begin_unix_;
  root.end = unix_at(end_);
  root.attributes = http_;
  if (status_ > 0) root.attributes.emplace_back("http.response.status_code", int64_t(status_));
  if (gone_) root.attributes.emplace_back("expertflow.client_gone", true);
  if (failed_) {
    root.status = TraceSpan::Status::kError;
    root.message = message_;
    root.attributes.emplace_back("error.type", status_ >= kServerError ? std::to_string(status_) : "_OTHER");
  }
  // A completion that was given up may end after its client's request.
  std::vector<TraceSpan> all;
  for (const Answer& answer : answers_) {
    add_answer(answer, root, all);
    root.end = std::max(root.end, unix_at(answer.times.ended));
  }
  all.insert(all.begin(), std::move(root));
  return all;
}

namespace {

class TracedReply final : public HttpReply {
 public:
  TracedReply(std::shared_ptr<HttpReply> reply, std::shared_ptr<RequestTrace> trace)
      : reply_(std::move(reply)), trace_(std::move(trace)) {}

  void send(int status, const std::string& type, std::string body, const HttpHeaders& headers) override {
    trace_->answered(status);
    reply_->send(status, type, std::move(body), with_trace(headers));
    trace_->ended(false);
  }
  void begin(int status, const std::string& type, const HttpHeaders& headers, const std::string& filler) override {
    trace_->answered(status);
    reply_->begin(status, type, with_trace(headers), filler);
  }
  void write(std::string piece) override { reply_->write(std::move(piece)); }
  void end() override {
    reply_->end();
    trace_->ended(false);
  }
  void post(std::function<void()> work) override { reply_->post(std::move(work)); }
  void on_gone(std::function<void()> gone) override {
    reply_->on_gone([trace = trace_, gone = std::move(gone)] {
      trace->ended(true);
      gone();
    });
  }
  void when_silent(double seconds, std::function<void()> silent) override {
    reply_->when_silent(seconds, std::move(silent));
  }

 private:
  HttpHeaders with_trace(HttpHeaders headers) const {
    headers.emplace_back("traceparent", trace_->traceparent());
    return headers;
  }
  std::shared_ptr<HttpReply> reply_;
  std::shared_ptr<RequestTrace> trace_;
};

}  // namespace

std::shared_ptr<HttpReply> traced_reply(std::shared_ptr<HttpReply> reply, std::shared_ptr<RequestTrace> trace) {
  return std::make_shared<TracedReply>(std::move(reply), std::move(trace));
}

}  // namespace ef::server
