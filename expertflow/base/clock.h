// Time is injected, so that policies, statistics and tests are deterministic.
#pragma once
#include <chrono>

namespace ef {

using Duration = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic time since an arbitrary origin.
  virtual Duration now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Duration now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

/// A clock for tests: moves only when told.
class ManualClock final : public Clock {
 public:
  Duration now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  Duration now_{0};
};

inline double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace ef
