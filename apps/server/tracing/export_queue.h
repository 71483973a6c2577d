// Spans on their way to a collector: bounded, in batches, tried again where that may help, dropped and counted where it
// does not. Pure: time and luck come in. One thread.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/server/tracing/span.h"
#include "expertflow/base/clock.h"

namespace ef::server {

struct ExportOptions {
  size_t most_spans = 2048;             ///< that wait; further ones are dropped
  size_t batch = 512;                   ///< spans of one export at most
  Duration delay{5'000'000'000};        ///< that a batch waits for more
  Duration first_retry{1'000'000'000};  ///< then twice as long each time, with jitter
  Duration most_retry{30'000'000'000};  ///< at most, also where the collector says when
  int attempts = 6;                     ///< of one batch
};

/// What became of one export.
struct SendResult {
  enum class Kind : uint8_t { kAccepted, kLater, kRefused };  ///< kLater: trying again may help
  Kind kind = Kind::kAccepted;
  uint64_t rejected = 0;                ///< of an accepted one, spans that the collector did not take
  std::optional<Duration> retry_after;  ///< that the collector asked for
  std::string error;
};

struct ExportCounts {
  uint64_t exported = 0;                                  ///< spans that the collector took
  uint64_t dropped_full = 0;                              ///< spans for which there was no room
  uint64_t dropped_refused = 0, dropped_unreachable = 0;  ///< the collector did not want them; could not be reached
  uint64_t failures = 0;                                  ///< exports that failed, each attempt
  size_t waiting = 0;                                     ///< spans
};

class ExportQueue {
 public:
  /// uniform: of [0, 1), for jitter.
  ExportQueue(const ExportOptions& options, std::function<double()> uniform);
  /// All of a trace's spans or none of them.
  bool push(std::vector<TraceSpan>&& spans, Duration now);
  /// When there is something to send, at the earliest; nothing: nothing waits.
  std::optional<Duration> due() const;
  /// What is to be sent now, until done() is told; empty: nothing yet. hurry: whatever waits.
  const std::vector<TraceSpan>& take(Duration now, bool hurry = false);
  void done(const SendResult& result, Duration now);
  /// Counts spans that come too late.
  void drop(size_t spans) { counts_.dropped_unreachable += spans; }
  /// Drops all that waits, as unreachable.
  void give_up();
  ExportCounts counts() const;

 private:
  void drop_batch(uint64_t& counter);
  ExportOptions options_;
  std::function<double()> uniform_;
  std::deque<TraceSpan> waiting_;
  Duration oldest_{0};            // since when the first of them waits
  std::vector<TraceSpan> batch_;  // under way, or to be tried again
  int attempts_ = 0;              // of it
  Duration not_before_{0};
  ExportCounts counts_;
};

}  // namespace ef::server
