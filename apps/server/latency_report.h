// What clients felt: time to the first token and time between tokens as percentiles, and the share of answers within
// the service level, for the requests that found the experts' tier cold and for those after them.
#pragma once
#include <array>
#include <mutex>
#include <vector>

#include "apps/server/api_error.h"
#include "expertflow/engine/completion.h"

namespace ef::server {

struct SlaOptions {
  double ttft = 1;   ///< seconds to the first token that an answer may take
  double itl = 0.1;  ///< seconds between its tokens, on average over the answer
  int cold = 32;     ///< requests that count as cold: the first so many that began

  void check() const;  ///< ConfigError naming the flag for what is out of range
};

/// The latest values, so many at most.
class LatestValues {
 public:
  explicit LatestValues(size_t most) : most_(most) {}
  void add(double value);
  const std::vector<double>& values() const { return values_; }
  uint64_t count() const { return count_; }  ///< of all, also of those that are gone
  double sum() const { return sum_; }

 private:
  size_t most_;
  std::vector<double> values_;  // a ring
  uint64_t count_ = 0;
  double sum_ = 0;
};

class LatencyReport final : public CompletionWatch {
 public:
  /// ConfigError naming the flag for what is out of range.
  explicit LatencyReport(const SlaOptions& options);
  void on_start(const CompletionTimes& times) override;
  void on_token(const CompletionTimes& times, Duration since) override;
  void on_end(const CompletionTimes& times, const char* finish) override;

  enum Phase : uint8_t { kCold, kWarm };
  static constexpr std::array kPhases = {"cold", "warm"};
  struct Figures {
    LatestValues ttft{kMostRequests}, itl{kMostTokens};
    uint64_t requests = 0;  ///< that were answered or failed; those whose client went away or that asked for no token
                            ///< are not counted
    uint64_t failed = 0, within = 0;  ///< within: the service level; one that failed is not
    double share() const { return requests ? double(within) / double(requests) : 1; }
  };
  static constexpr size_t kMostRequests = 4096, kMostTokens = 65536;
  const SlaOptions& options() const { return options_; }
  Figures figures(Phase phase) const;
  /// {"sla": {...}, "cold": {"requests", "failed", "sla_share", "ttft_seconds": {"mean", "p50", "p95", "p99", "max"},
  /// "itl_seconds": {...}}, "warm": {...}}; percentiles by nearest rank, of the latest values; null where there are
  /// none.
  Json json() const;

 private:
  Phase phase_of(const CompletionTimes& times) const;
  SlaOptions options_;
  mutable std::mutex mutex_;
  int started_ = 0;
  Duration last_cold_{0};  // when the last of the cold ones began
  std::array<Figures, kPhases.size()> figures_;
};

}  // namespace ef::server
