#include "apps/server/serve.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <thread>

#include "apps/server/api.h"
#include "apps/server/tracing/trace_options.h"

namespace ef::server {

namespace {

// SIGTERM and SIGINT as something to wait for. Blocked in this thread and in those that it starts.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    fd_ = signalfd(-1, &set_, SFD_CLOEXEC);
    EF_CHECK(fd_ >= 0, DeviceError, "signals cannot be waited for");
  }
  ~Signals() {
    ::close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Whether one came within so many milliseconds; -1: waits for it.
  bool wait(int milliseconds) const {
    pollfd p{fd_, POLLIN, 0};
    if (poll(&p, 1, milliseconds) <= 0) return false;
    signalfd_siginfo info;
    return ::read(fd_, &info, sizeof info) == sizeof info;
  }

 private:
  sigset_t set_{}, before_{};
  int fd_ = -1;
};

HttpOptions http_options(const ServerOptions& o) {
  const auto check = [](bool fine, const char* flag, const char* expected, auto found) {
    EF_CHECK(fine, ConfigError, "{}: expected {}, found {}", flag, expected, found);
  };
  check(o.port >= 0 && o.port <= 65535, "--port", "0 to 65535", o.port);
  check(o.http_threads >= 1 && o.http_threads <= 256, "--threads-http", "1 to 256", o.http_threads);
  check(o.max_body_mib >= 1 && o.max_body_mib <= 1024, "--max-body", "1 to 1024", o.max_body_mib);
  check(o.timeout > 0 && o.timeout <= 86400, "--timeout", "above 0, at most 86400", o.timeout);
  check(o.drain_timeout >= 0 && o.drain_timeout <= 86400, "--drain-timeout", "0 to 86400", o.drain_timeout);
  check(o.ping_interval >= 0 && o.ping_interval <= 86400, "--sse-ping-interval", "0 to 86400", o.ping_interval);
  check(o.predict >= -1, "--predict", "-1 or more", o.predict);
  HttpOptions h;
  h.host = o.host;
  h.port = o.port;
  h.threads = o.http_threads;
  h.max_body_bytes = uint64_t(o.max_body_mib) << 20;
  h.read_seconds = h.write_seconds = h.idle_seconds = o.timeout;
  h.drain_seconds = o.drain_timeout;
  return h;
}

std::shared_ptr<Tracer> make_tracer(const ServerOptions& o, const Clock& clock, const Log& log) {
  TraceOptions options =
      trace_options(o.otlp_endpoint, o.otlp_sample, [](const char* name) { return std::getenv(name); });
  std::unique_ptr<SpanExporter> exporter;
  if (options.target) {
    constexpr double kExportSeconds = 10;
    const LoadTarget& where = options.target->where;
    log.info("traces: {:g} % of the requests, and all that fail, to http://{}:{}{}", 100 * options.sample, where.host,
             where.port, where.path);
    Attributes resource = std::move(options.resource);
    resource.emplace_back("service.version", std::string(kVersion));
    resource.emplace_back("process.pid", int64_t(getpid()));
    exporter = std::make_unique<SpanExporter>(make_otlp_http(std::move(*options.target), kExportSeconds),
                                              std::move(resource), kVersion, ExportOptions{}, clock, log);
  }
  return std::make_shared<Tracer>(std::move(exporter), options.sample, real_trace_sources());
}

}  // namespace

int serve(const ModelSources& sources, const ServerOptions& options, const Log& log, const EngineMaker& make_engine) {
  const HttpOptions http = http_options(options);
  check_serving(sources, options);
  const Signals signals;  // before anything that starts threads: they inherit what is blocked
  const SteadyClock clock;
  Api api(options, log, make_tracer(options, clock, log));
  HttpServer server(
      http, [&](HttpRequest request, std::shared_ptr<HttpReply> reply) { api.handle(std::move(request), reply); },
      [](int status, const std::string& message) {
        return error_json(ApiError(status, "invalid_request_error", message));
      },
      log);
  log.info("listening on http://{}:{}, loading the model", options.host, server.port());
  std::exception_ptr failure;
  std::atomic<bool> loaded{false};
  // Requests are answered (with 503) meanwhile, and a signal ends it.
  std::thread loader([&] {
    try {
      auto model = load_served_model(sources, options, log, make_engine);
      loaded = true;  // before a request can be taken: from then on a signal waits for answers
      api.set_model(std::move(model));
      log.info("ready: http://{}:{}", options.host, server.port());
    } catch (...) {
      failure = std::current_exception();
      loaded = true;
    }
  });
  constexpr int kLook = 50;
  bool asked = false;
  while (!loaded && !asked) asked = signals.wait(kLook);
  if (!loaded) {
    // No answer is under way and nothing has to be kept: what may take minutes is not waited for.
    log.info("stopped while loading the model");
    api.end_traces(std::chrono::seconds(1));
    _exit(0);
  }
  loader.join();
  if (failure) std::rethrow_exception(failure);
  if (!asked) signals.wait(-1);
  log.info("shutting down: answers under way have {} s", options.drain_timeout);
  api.begin_shutdown();
  std::atomic<bool> drained{false};
  bool all = false;
  std::thread drain([&] {
    all = server.drain();
    drained = true;
  });
  while (!drained)
    if (signals.wait(kLook)) {
      constexpr int kInterruptedExit = 130;
      _exit(kInterruptedExit);
    }
  drain.join();
  if (!all) log.warn("answers were cut off");
  api.drop_model();
  if (!all) server.drain();  // they were told so: that has to reach them
  api.end_traces(std::chrono::seconds(5));
  return 0;
}

}  // namespace ef::server
