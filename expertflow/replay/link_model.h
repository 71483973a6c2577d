// The link between the tiers under a virtual clock: one or several copy engines, each serving one copy at a time at its
// share of the bandwidth. Demand goes before what is copied ahead, of which the nearest layer goes first; a copy that
// has begun is not interrupted.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "expertflow/base/clock.h"
#include "expertflow/base/ids.h"

namespace ef {

struct LinkOptions {
  double bytes_per_second = 0;  ///< of all engines together
  Duration latency{0};          ///< of each copy, before its bytes flow
  int engines = 1;
};

class Link {
 public:
  /// ConfigError unless bandwidth and engines are above 0 and the latency is not below.
  explicit Link(const LinkOptions& options);

  struct Copy {
    ExpertKey key;
    uint64_t bytes = 0;
    bool ahead = false;     ///< nobody had asked for it when it was queued
    bool demanded = false;  ///< somebody waits for it
    Duration begin{0}, end{0};
  };
  /// Of copies that begin from now on.
  void set_bandwidth(double bytes_per_second) { options_.bytes_per_second = bytes_per_second; }
  double bandwidth() const { return options_.bytes_per_second; }
  /// Queued at `now`; the link has been brought there by arrived().
  void submit(ExpertKey key, uint64_t bytes, bool ahead, Duration now);
  /// A queued copy that is ahead becomes demand; false if it is not queued (under way, or unknown).
  bool promote(ExpertKey key);
  /// Takes back queued copies that are ahead.
  std::vector<ExpertKey> cancel(const std::function<bool(ExpertKey)>& which);
  /// Whatever has arrived until `now`, in order of arrival. Each once.
  std::vector<Copy> arrived(Duration now);
  /// When the next copy arrives, if nothing else is submitted.
  std::optional<Duration> next_arrival();

  /// Copies ahead that are queued or under way, in seconds of the whole link.
  double ahead_seconds() const;
  uint64_t ahead_bytes() const;
  /// At least one demanded copy was queued or under way, since the beginning; `now` as of the last arrived().
  double demand_busy_seconds() const;
  double busy_seconds(Duration now) const;  ///< at least one engine at work, since the beginning
  Duration copy_time(uint64_t bytes) const;

 private:
  struct Job {
    Copy copy;
    Duration queued{0};
  };
  void begin_until(Duration now);
  void note_demand(Duration now);

  LinkOptions options_;
  std::vector<Duration> free_;      // by engine: when it is free
  std::deque<Job> demand_, ahead_;  // ahead: by layer, in order of submission within one
  std::vector<Copy> active_;        // begun, not reported
  Duration busy_until_{0}, busy_{0};
  Duration now_{0}, demand_since_{0}, demand_busy_{0};
  int demanded_ = 0;  // queued or under way
};

}  // namespace ef
