#include "apps/server/tracing/span_exporter.h"

#include <memory>
#include <random>

namespace ef::server {

namespace {

std::function<double()> jitter() {
  auto random = std::make_shared<std::mt19937_64>(std::random_device{}());
  return [random] { return double((*random)() >> 11) * 0x1p-53; };
}

}  // namespace

SpanExporter::SpanExporter(std::unique_ptr<SpanTransport> transport, Attributes resource, std::string version,
                           const ExportOptions& options, const Clock& clock, const Log& log)
    : transport_(std::move(transport)),
      resource_(std::move(resource)),
      version_(std::move(version)),
      clock_(clock),
      log_(log),
      queue_(options, jitter()) {
  thread_ = std::thread([this] { work(); });
}

SpanExporter::~SpanExporter() { shutdown(Duration(0)); }

bool SpanExporter::offer(std::vector<TraceSpan>&& spans) {
  bool taken = false;
  {
    const std::lock_guard lock(mutex_);
    taken = !over_ && queue_.push(std::move(spans), clock_.now());
    if (over_) queue_.drop(spans.size());
  }
  wake_.notify_one();
  return taken;
}

void SpanExporter::shutdown(Duration most) {
  {
    std::unique_lock lock(mutex_);
    hurry_ = true;
    wake_.notify_one();
    ended_.wait_for(lock, most, [&] { return over_; });
    over_ = true;
  }
  transport_->cancel();
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

ExportCounts SpanExporter::counts() const {
  const std::lock_guard lock(mutex_);
  return queue_.counts();
}

void SpanExporter::work() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    const auto due = queue_.due();
    if (!due && hurry_) break;
    const Duration now = clock_.now();
    const std::vector<TraceSpan>& batch = queue_.take(now, hurry_);
    if (batch.empty()) {
      if (due)
        wake_.wait_for(lock, *due - now);
      else
        wake_.wait(lock);
      continue;
    }
    // Nobody else changes a batch that is under way.
    lock.unlock();
    SendResult result = transport_->send(otlp_json(batch, resource_, version_));
    lock.lock();
    say(result);
    const bool last_try = hurry_ && result.kind == SendResult::Kind::kLater;
    queue_.done(result, clock_.now());
    if (last_try) break;
  }
  queue_.give_up();
  over_ = true;
  ended_.notify_all();
}

// Once when it begins to fail, once when it is well again.
void SpanExporter::say(const SendResult& result) {
  const bool failed = result.kind != SendResult::Kind::kAccepted;
  if (failed && !failing_) log_.warn("traces are not taken: {}", result.error);
  if (!failed && failing_) log_.info("traces are taken again");
  if (!failed && result.rejected > 0) log_.warn("the collector rejected {} spans: {}", result.rejected, result.error);
  failing_ = failed;
}

}  // namespace ef::server
