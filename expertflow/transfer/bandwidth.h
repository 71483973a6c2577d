// Moving average of what the slow tier delivers while it is busy, all readers together.
#pragma once
#include <cstdint>

#include "expertflow/base/clock.h"

namespace ef {

/// Bytes and busy seconds fade by the same factor with every copy, so an estimate is (recent bytes) / (recent busy
/// time): copies that overlap are not counted twice, idle time not at all.
class BandwidthEstimate {
 public:
  void begin(Duration now) {
    if (active_++ == 0) mark_ = now;
  }
  /// One copy has ended; bytes = 0 for one that failed (its time counts, it delivered nothing).
  void end(Duration now, uint64_t bytes) {
    --active_;
    bytes_ = bytes_ * kKeep + double(bytes);
    busy_ = busy_ * kKeep + seconds(now - mark_);
    total_ += now - mark_;
    mark_ = now;
  }
  double bytes_per_second() const { return busy_ > 0 ? bytes_ / busy_ : 0.; }  ///< 0 before the first copy
  /// Time with at least one copy under way, since the beginning.
  double busy_seconds(Duration now) const { return seconds(active_ > 0 ? total_ + (now - mark_) : total_); }

 private:
  static constexpr double kKeep = 0.9;  // ten copies or so
  int active_ = 0;
  Duration mark_{0}, total_{0};
  double bytes_ = 0, busy_ = 0;
};

}  // namespace ef
