// How long work learns that nobody wants its result any more.
#pragma once
#include <functional>
#include <stop_token>

#include "expertflow/base/errors.h"

namespace ef {

/// The work was given up half-way, as asked.
class StoppedError : public RequestError {
 public:
  using RequestError::RequestError;
};

/// Called by long loops at every turn that costs more than the call: throws StoppedError once a stop is asked for.
class StopCheck {
 public:
  StopCheck() = default;  ///< never stops
  /// watch: called at every check (tests meet there); null: nobody. Must outlive this.
  explicit StopCheck(std::stop_token stop, const std::function<void()>* watch = nullptr)
      : stop_(std::move(stop)), watch_(watch && *watch ? watch : nullptr) {}
  void operator()() const {
    if (watch_) (*watch_)();
    if (stop_.stop_requested()) throw StoppedError("given up, as asked");
  }

 private:
  std::stop_token stop_;
  const std::function<void()>* watch_ = nullptr;
};

}  // namespace ef
