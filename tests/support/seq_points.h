// Orders threads by named points instead of sleeps: a thread that passes a held point stops there until it is let go,
// and any thread can wait until a point has been passed.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace ef::testing {

class SeqPoints {
 public:
  /// Marks the point as reached, then blocks while it is held.
  void pass(const std::string& point) {
    std::unique_lock lock(mutex_);
    log_.push_back(point);
    change_.notify_all();
    change_.wait(lock, [&] { return held_.count(point) == 0; });
  }
  void hold(const std::string& point) {
    const std::lock_guard lock(mutex_);
    held_.insert(point);
  }
  void let_go(const std::string& point) {
    const std::lock_guard lock(mutex_);
    held_.erase(point);
    change_.notify_all();
  }
  void wait_for(const std::string& point) {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return std::find(log_.begin(), log_.end(), point) != log_.end(); });
  }
  /// Points passed so far that begin with `prefix`, in order.
  std::vector<std::string> log(const std::string& prefix = "") const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const std::string& point : log_)
      if (point.compare(0, prefix.size(), prefix) == 0) out.push_back(point);
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable change_;
  std::vector<std::string> log_;
  std::set<std::string> held_;
};

}  // namespace ef::testing
