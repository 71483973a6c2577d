#include "apps/server/tracing/export_queue.h"

#include <algorithm>
#include <cmath>

namespace ef::server {

ExportQueue::ExportQueue(const ExportOptions& options, std::function<double()> uniform)
    : options_(options), uniform_(std::move(uniform)) {}

bool ExportQueue::push(std::vector<TraceSpan>&& spans, Duration now) {
  if (waiting_.size() + batch_.size() + spans.size() > options_.most_spans) {
    counts_.dropped_full += spans.size();
    return false;
  }
  if (waiting_.empty()) oldest_ = now;
  std::move(spans.begin(), spans.end(), std::back_inserter(waiting_));
  return true;
}

std::optional<Duration> ExportQueue::due() const {
  if (!batch_.empty()) return not_before_;
  if (waiting_.empty()) return std::nullopt;
  return waiting_.size() >= options_.batch ? oldest_ : oldest_ + options_.delay;
}

const std::vector<TraceSpan>& ExportQueue::take(Duration now, bool hurry) {
  static const std::vector<TraceSpan> kNone;
  const auto when = due();
  if (!when || (now < *when && !hurry)) return kNone;
  if (batch_.empty()) {
    const auto end = waiting_.begin() + std::ptrdiff_t(std::min(options_.batch, waiting_.size()));
    batch_.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    oldest_ = now;
    attempts_ = 0;
  }
  return batch_;
}

void ExportQueue::drop_batch(uint64_t& counter) {
  counter += batch_.size();
  batch_.clear();
}

void ExportQueue::done(const SendResult& result, Duration now) {
  using Kind = SendResult::Kind;
  if (batch_.empty()) return;
  if (result.kind == Kind::kAccepted) {
    const uint64_t rejected = std::min<uint64_t>(result.rejected, batch_.size());
    counts_.dropped_refused += rejected;
    counts_.exported += batch_.size() - rejected;
    batch_.clear();
    return;
  }
  ++counts_.failures;
  if (result.kind == Kind::kRefused) return drop_batch(counts_.dropped_refused);
  if (++attempts_ >= options_.attempts) return drop_batch(counts_.dropped_unreachable);
  const auto most = double(options_.most_retry.count());
  const double backoff = std::min(most, double(options_.first_retry.count()) * std::exp2(attempts_ - 1));
  // From half of it to all: those that were refused together do not come back together.
  const Duration jittered{int64_t(backoff * (0.5 + 0.5 * uniform_()))};
  not_before_ = now + std::min(result.retry_after.value_or(jittered), options_.most_retry);
}

void ExportQueue::give_up() {
  drop_batch(counts_.dropped_unreachable);
  counts_.dropped_unreachable += waiting_.size();
  waiting_.clear();
}

ExportCounts ExportQueue::counts() const {
  ExportCounts c = counts_;
  c.waiting = waiting_.size() + batch_.size();
  return c;
}

}  // namespace ef::server
