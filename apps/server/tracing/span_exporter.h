// One thread that sends spans to a collector. Whoever offers spans never waits for it.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "apps/server/tracing/export_queue.h"
#include "expertflow/base/log.h"

namespace ef::server {

/// Takes one export's JSON; may take its time. On the exporter's thread.
class SpanTransport {
 public:
  virtual ~SpanTransport() = default;
  virtual SendResult send(const std::string& json) = 0;
  /// From another thread: a send() under way returns soon, with whatever result, and later ones at once.
  virtual void cancel() = 0;
};

class SpanExporter {
 public:
  /// log and clock must outlive it. resource: attributes of this process.
  SpanExporter(std::unique_ptr<SpanTransport> transport, Attributes resource, std::string version,
               const ExportOptions& options, const Clock& clock, const Log& log);
  /// As shutdown(0).
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  /// False: dropped, and counted. From any thread; no waiting but for other offers.
  bool offer(std::vector<TraceSpan>&& spans);
  /// Sends what waits, each batch once, within so long; the rest is dropped, and later offers are.
  void shutdown(Duration most);
  ExportCounts counts() const;

 private:
  void work();
  void say(const SendResult& result);
  std::unique_ptr<SpanTransport> transport_;
  Attributes resource_;
  std::string version_;
  const Clock& clock_;
  const Log& log_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, ended_;
  ExportQueue queue_;
  bool hurry_ = false, over_ = false, failing_ = false;
  std::thread thread_;
};

}  // namespace ef::server
