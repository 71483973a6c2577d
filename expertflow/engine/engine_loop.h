// One thread that owns an engine and its scheduler; requests come from any thread.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "expertflow/base/log.h"
#include "expertflow/engine/completion.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/expert_metrics.h"
#include "expertflow/sched/scheduler.h"

namespace ef {

struct LoopOptions {
  SchedulerOptions scheduler;
  int max_queue = 512;                            ///< requests that wait, more are refused
  std::function<void(const Batch&)> before_step;  ///< tests meet here; may throw, as a step may

  void check() const;  ///< ConfigError naming the flag
};

/// The queue is full: try later (HTTP 503).
class BusyError : public RequestError {
 public:
  using RequestError::RequestError;
};

class EngineLoop {
 public:
  /// tokenizer and watch may be null; all must outlive the loop.
  EngineLoop(Engine& engine, const Tokenizer* tokenizer, const LoopOptions& options, const Log& log,
             CompletionWatch* watch = nullptr);
  /// Requests that are under way fail.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  /// Requests that are under way fail, later ones are refused. The destructor does the same.
  void stop();

  using Handle = std::shared_ptr<Completion>;
  /// Several answers to one prompt may be submitted together: the first is prefilled first. Sinks are called on the
  /// loop's thread. RequestError as Completion's constructor, BusyError, DeviceLostError.
  std::vector<Handle> submit(std::vector<CompletionRequest> requests, std::vector<Completion::Sink> sinks);
  /// Wakes the loop, so that a cancelled request leaves at once.
  void cancel(const Handle& handle);

  int64_t context_length() const { return limits_.length; }
  struct Snapshot {
    SchedulerStats scheduler;
    ExpertStats experts;
    std::vector<Scheduler::Slot> slots;
    double step_seconds = 0;  ///< spent in steps, all together
  };
  /// Why nothing can be computed any more: the device is lost, and requests are refused with DeviceLostError. Empty: it
  /// can.
  std::string lost() const;
  /// As of the last step (or of the start); who runs and who waits as of the beginning of the one under way.
  Snapshot snapshot() const;
  /// Requests that wait for their first step.
  int queued() const;
  /// The experts' metrics as of the last step, with the deferral and the latency of decoding steps.
  ExpertMetrics expert_metrics() const;
  /// Tokens that each expert has served, [layer][expert]; empty for dense layers, and all of it where nobody counts (on
  /// devices, where looking would cost).
  std::vector<std::vector<uint32_t>> expert_uses() const;
  /// Runs between steps on the loop's thread, and waits for it.
  void between_steps(const std::function<void(Engine&)>& work);

 private:
  class Runner;
  void work();
  void take_in();
  void publish();
  void count_queued();
  void show_sequences();
  void remember(double step_seconds);
  void give_up();

  Engine& engine_;
  const Tokenizer* tokenizer_;
  std::unique_ptr<const TokenOrder> token_order_;  ///< made when first needed
  LoopOptions options_;
  const Log& log_;
  CompletionWatch* watch_;
  SteadyClock clock_;
  StepRunner::Limits limits_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Scheduler> scheduler_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::vector<Handle>> incoming_;
  std::vector<std::function<void(Engine&)>> jobs_;
  bool stop_ = false, nudge_ = false;
  std::string lost_;
  int queued_ = 0;   ///< incoming, and waiting as of the last step
  int running_ = 0;  ///< in slots, as of the last step
  Snapshot snapshot_;
  std::vector<double> step_times_;  ///< seconds of the latest steps without prompts, in a ring
  size_t next_time_ = 0;
  std::thread thread_;
};

}  // namespace ef
