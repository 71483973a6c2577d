// The trace of one request: a span for the HTTP request, below it one for each answer of the model, and below that
// queue, prefill and decode. Built and sent when everybody who had a part in it is done, and then only if it is sampled
// or something failed.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/server/http_server.h"
#include "apps/server/tracing/span_exporter.h"
#include "apps/server/tracing/trace_context.h"
#include "expertflow/engine/completion.h"

namespace ef::server {

struct TraceCounts {
  uint64_t sampled = 0, failed = 0, dropped = 0;  ///< sent as sampled; sent because they failed; not sent
};

/// Where time and luck come from.
struct TraceSources {
  const Clock* clock = nullptr;          ///< the one that CompletionTimes are of
  std::function<uint64_t()> unix_nanos;  ///< the same moment as the clock's, in nanoseconds since 1970
  std::function<uint64_t()> random;      ///< 64 bits; called from any thread, one call at a time
};
TraceSources real_trace_sources();

class RequestTrace;

class Tracer : public std::enable_shared_from_this<Tracer> {
 public:
  /// exporter may be null: traces have ids, and go nowhere. sample: of those that begin here.
  Tracer(std::unique_ptr<SpanExporter> exporter, double sample, TraceSources sources);

  /// A request's trace: the caller's, if it sent a valid traceparent, else a new one.
  std::shared_ptr<RequestTrace> begin(const HttpRequest& request, std::string_view route);
  TraceCounts counts() const;
  std::optional<ExportCounts> export_counts() const;  ///< nothing where nothing is sent
  /// See SpanExporter::shutdown.
  void shutdown(Duration most);

 private:
  friend class RequestTrace;
  std::string hex_id(int words);
  bool is_sampled(const std::string& trace_id) const;
  void end(const RequestTrace& trace);
  std::unique_ptr<SpanExporter> exporter_;
  double sample_;
  TraceSources sources_;
  std::mutex random_mutex_;
  std::atomic<uint64_t> sampled_{0}, failed_{0}, dropped_{0};
};

class RequestTrace final : public CompletionWatch {
 public:
  RequestTrace(std::shared_ptr<Tracer> tracer, TraceContext context, std::string parent_id, const HttpRequest& request,
               std::string_view route);
  /// All had their say: the trace is sent, or not.
  ~RequestTrace() override;

  /// The header of the answer. Sampled is what is known by now: a failure later on still has the trace sent.
  std::string traceparent() const;
  const std::string& trace_id() const { return context_.trace_id; }
  /// What is asked of the model, for each of its answers. operation: "chat", "text_completion".
  void describe(std::string operation, std::string model, Attributes attributes);
  /// The answer's status was sent; 500 and above are failures.
  void answered(int status);
  /// The last of the answer was sent, or the client went away.
  void ended(bool client_gone);
  /// Why it failed.
  void failed(const std::string& message);

  // Of its completions, on the engine's thread.
  void on_error(const std::exception_ptr& error) override;
  void on_end(const CompletionTimes& times, const char* finish) override;

 private:
  friend class Tracer;
  struct Answer {
    CompletionTimes times;
    std::string finish, error;
  };
  std::vector<TraceSpan> spans() const;
  void add_answer(const Answer& answer, const TraceSpan& root, std::vector<TraceSpan>& all) const;
  TraceSpan child(const TraceSpan& parent, std::string name, Duration begin, Duration end) const;
  uint64_t unix_at(Duration time) const;

  std::shared_ptr<Tracer> tracer_;
  TraceContext context_;
  std::string parent_id_, name_;
  Attributes http_;
  Duration begin_;
  uint64_t begin_unix_;
  mutable std::mutex mutex_;
  Duration end_{0};
  int status_ = 0;
  bool failed_ = false, gone_ = false;
  std::string message_, error_, operation_, model_;
  Attributes asked_;
  std::vector<Answer> answers_;
};

/// The same reply, watched: its status and its end go to the trace, and its head carries traceparent.
std::shared_ptr<HttpReply> traced_reply(std::shared_ptr<HttpReply> reply, std::shared_ptr<RequestTrace> trace);

}  // namespace ef::server
