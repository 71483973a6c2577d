#include "expertflow/engine/engine_loop.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <unordered_map>

#include "expertflow/base/device_lost.h"
#include "expertflow/base/errors.h"

namespace ef {

// The engine as the scheduler drives it; it also remembers which experts each sequence's last token used, the forecast
// for its next one.
class EngineLoop::Runner final : public StepRunner, public RoutingForecast, private StepObserver {
 public:
  Runner(Engine& engine, const Limits& limits, const LoopOptions& options)
      : engine_(engine), limits_(limits), before_step_(options.before_step) {
    const SchedulerOptions& s = options.scheduler;
    choosing_ = s.token_schedule_window > 0 && engine.options().parallel > step_tokens(limits, s);
    watches_ = choosing_ || engine.backend().memory_is_host();
    if (!watches_) return;
    const size_t experts = size_t(engine.config().router.experts);
    for (const LayerConfig& layer : engine.config().layers)
      uses_.push_back(std::vector<std::atomic<uint32_t>>(layer.sparse ? experts : 0));
    engine.set_observer(this);
  }
  ~Runner() override {
    if (watches_) engine_.set_observer(nullptr);
  }
  KvCache& kv() override { return engine_.kv(); }
  const Limits& limits() const override { return limits_; }
  std::function<void()> on_step;  ///< what the step takes has left the queue
  std::atomic<double> stall{0};   ///< seconds that steps waited for experts
  std::string lost;               ///< what the device was lost with; no step is tried after it

  void run(const Batch& batch, int top, std::vector<RowLogits>& rows) override {
    if (!lost.empty()) throw DeviceLostError(lost);
    if (on_step) on_step();
    try {
      compute(batch, top, rows);
    } catch (const DeviceLostError& error) {
      lost = error.what();
      throw;
    }
  }

  std::span<const ExpertKey> likely(int32_t sequence) const override {
    const auto it = last_.find(sequence);
    return it == last_.end() ? std::span<const ExpertKey>() : std::span<const ExpertKey>(it->second);
  }
  bool near(ExpertKey key) const override { return engine_.expert_is_near(key); }
  bool choosing() const { return choosing_; }  ///< whether steps may be too small for all tokens, and are chosen for
  std::vector<std::vector<uint32_t>> uses() const {
    std::vector<std::vector<uint32_t>> all;
    for (const auto& layer : uses_) all.emplace_back(layer.begin(), layer.end());
    return all;
  }

 private:
  void compute(const Batch& batch, int top, std::vector<RowLogits>& rows) {
    if (before_step_) before_step_(batch);
    batch_ = &batch;
    odd_layers_.clear();
    if (choosing_)
      for (const auto& piece : batch.pieces) last_[piece.sequence].clear();
    const size_t count = size_t(batch.logit_rows());
    if (top > 0) {
      const TopLogits largest = engine_.step_top(batch, top);
      const size_t n = size_t(top);
      for (size_t i = 0; i < count; ++i)
        rows.push_back({{}, largest.ids.subspan(i * n, n), largest.logits.subspan(i * n, n)});
    } else {
      const std::span<const float> logits = engine_.step(batch);
      const size_t vocab = size_t(engine_.config().vocab);
      for (size_t i = 0; i < count; ++i) rows.push_back({logits.subspan(i * vocab, vocab), {}, {}});
    }
    if (!odd_layers_.empty()) name_odd_layers(batch, rows);
    stall = engine_.stall_seconds();
  }

  void on_routing(LayerId layer, const float*, const float*, const RoutingView& routing) override {
    for (int64_t row = 0; row < routing.tokens; ++row) {
      const float* weights = routing.weights + row * routing.top_k;
      const auto odd = [](float w) { return !std::isfinite(w); };
      if (std::any_of(weights, weights + routing.top_k, odd)) odd_layers_.try_emplace(row, int(layer));
    }
    auto& uses = uses_[size_t(layer)];
    for (int64_t i = 0; i < routing.tokens * routing.top_k; ++i)
      uses[size_t(routing.ids[i])].fetch_add(1, std::memory_order_relaxed);
    if (!choosing_) return;
    int64_t row = 0;
    for (const auto& piece : batch_->pieces) {
      row += int64_t(piece.tokens.size());
      const int32_t* ids = routing.ids + (row - 1) * routing.top_k;
      auto& last = last_[piece.sequence];
      for (int k = 0; k < routing.top_k; ++k) last.push_back({layer, ids[k]});
    }
  }

  // rows: one for each of the batch's logit rows.
  void name_odd_layers(const Batch& batch, std::vector<RowLogits>& rows) const {
    int64_t first = 0;
    auto out = rows.end() - batch.logit_rows();
    for (const auto& piece : batch.pieces) {
      using Logits = Batch::Piece::Logits;
      const int64_t count = int64_t(piece.tokens.size());
      const int64_t from = piece.logits == Logits::kAll ? 0 : piece.logits == Logits::kLast ? count - 1 : count;
      for (int64_t i = from; i < count; ++i, ++out)
        if (const auto it = odd_layers_.find(first + i); it != odd_layers_.end()) out->odd_layer = it->second;
      first += count;
    }
  }

  Engine& engine_;
  Limits limits_;
  std::function<void(const Batch&)> before_step_;
  std::unordered_map<int64_t, int> odd_layers_;  ///< by row of the step: where its numbers ceased to be any
  bool watches_ = false, choosing_ = false;
  const Batch* batch_ = nullptr;
  std::vector<std::vector<std::atomic<uint32_t>>> uses_;  ///< [layer][expert]
  std::unordered_map<SequenceId, std::vector<ExpertKey>> last_;
};

void LoopOptions::check() const {
  EF_CHECK(max_queue >= 1, ConfigError, "max-queue: expected at least 1, found {}", max_queue);
  scheduler.check();
}

EngineLoop::EngineLoop(Engine& engine, const Tokenizer* tokenizer, const LoopOptions& options, const Log& log,
                       CompletionWatch* watch)
    : engine_(engine), tokenizer_(tokenizer), options_(options), log_(log), watch_(watch) {
  options.check();
  limits_.rows = engine.options().ubatch;
  limits_.logit_rows = int(std::max<int64_t>(engine.options().max_logit_rows, engine.options().parallel));
  limits_.most_top = engine.most_top();
  const ExpertStats experts = engine.expert_stats();
  limits_.costly_steps = !experts.io.empty() && engine.plan().expert_budget < engine.plan().expert_total;
  limits_.length = std::min<int64_t>(engine.context_length(), engine.config().context_length);
  runner_ = std::make_unique<Runner>(engine, limits_, options);
  scheduler_ = std::make_unique<Scheduler>(*runner_, options.scheduler, runner_.get());
  runner_->on_step = [this] {
    count_queued();
    show_sequences();
  };
  publish();
  thread_ = std::thread([this] { work(); });
}

EngineLoop::~EngineLoop() { stop(); }

void EngineLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::vector<EngineLoop::Handle> EngineLoop::submit(std::vector<CompletionRequest> requests,
                                                   std::vector<Completion::Sink> sinks) {
  EF_DCHECK(requests.size() == sinks.size());
  Completion::Context context{tokenizer_,    nullptr, &clock_, watch_, &runner_->stall, engine_.config().vocab,
                              limits_.length};
  const bool constrained = std::any_of(requests.begin(), requests.end(), [](const auto& r) { return r.grammar; });
  if (constrained && tokenizer_) {
    const std::lock_guard lock(mutex_);
    if (!token_order_) token_order_ = std::make_unique<TokenOrder>(*tokenizer_);
    context.token_order = token_order_.get();
  }
  std::vector<Handle> handles;
  for (size_t i = 0; i < requests.size(); ++i)
    handles.push_back(std::make_shared<Completion>(std::move(requests[i]), context, std::move(sinks[i])));
  {
    const std::lock_guard lock(mutex_);
    // What is on its way to a free slot does not wait for one. More answers than may ever wait go where nobody does.
    const int room = options_.max_queue + std::max(0, engine_.options().parallel - running_);
    const bool fits = queued_ + int(handles.size()) <= room || queued_ == 0;
    if (stop_ || !fits || !lost_.empty()) {
      for (const Handle& handle : handles) handle->forget();
      if (!lost_.empty()) throw DeviceLostError(lost_);
      EF_CHECK(!stop_, BusyError, "the server is shutting down");
      fail<BusyError>(
          "the queue is full: {} requests wait or begin, {} more were asked for, at most {} may; try again later",
          queued_, handles.size(), room);
    }
    queued_ += int(handles.size());
    incoming_.push_back(handles);
  }
  wake_.notify_all();
  return handles;
}

void EngineLoop::cancel(const Handle& handle) {
  handle->cancel();
  {
    const std::lock_guard lock(mutex_);
    nudge_ = true;
  }
  wake_.notify_all();
}

void EngineLoop::between_steps(const std::function<void(Engine&)>& work) {
  std::promise<void> done;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back([&](Engine& engine) {
      try {
        work(engine);
        done.set_value();
      } catch (...) {
        done.set_exception(std::current_exception());
      }
    });
  }
  wake_.notify_all();
  done.get_future().get();
}

std::string EngineLoop::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

EngineLoop::Snapshot EngineLoop::snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

std::vector<std::vector<uint32_t>> EngineLoop::expert_uses() const { return runner_->uses(); }

// Under the lock.
void EngineLoop::remember(double step_seconds) {
  constexpr size_t kLatest = 1024;
  if (step_times_.size() < kLatest)
    step_times_.push_back(step_seconds);
  else
    step_times_[next_time_++ % kLatest] = step_seconds;
}

ExpertMetrics EngineLoop::expert_metrics() const {
  const std::lock_guard lock(mutex_);
  const ExpertStats& e = snapshot_.experts;
  const SchedulerStats& s = snapshot_.scheduler;
  ExpertMetrics m = metrics_of(e, step_times_);
  if (runner_->choosing() && s.ready_tokens > 0)
    m.token_defer_rate = double(s.deferred_tokens) / double(s.ready_tokens);
  return m;
}

int EngineLoop::queued() const {
  const std::lock_guard lock(mutex_);
  return queued_;
}

void EngineLoop::publish() {
  Snapshot now{scheduler_->stats(), engine_.expert_stats(), scheduler_->slots(), 0};
  const std::lock_guard lock(mutex_);
  now.step_seconds = snapshot_.step_seconds;
  snapshot_ = std::move(now);
}

// A step may take seconds: whom it is for is seen while it runs.
void EngineLoop::show_sequences() {
  std::vector<Scheduler::Slot> slots = scheduler_->slots();
  const std::lock_guard lock(mutex_);
  snapshot_.slots = std::move(slots);
  snapshot_.scheduler.running = scheduler_->running();
  snapshot_.scheduler.waiting = scheduler_->waiting();
}

void EngineLoop::count_queued() {
  const std::lock_guard lock(mutex_);
  queued_ = scheduler_->waiting();
  running_ = scheduler_->running();
  for (const auto& group : incoming_) queued_ += int(group.size());
}

void EngineLoop::take_in() {
  std::vector<std::vector<Handle>> groups;
  {
    const std::lock_guard lock(mutex_);
    groups.swap(incoming_);
  }
  for (const auto& group : groups) {
    RequestId first = 0;
    for (const Handle& handle : group) {
      SequenceRequest request;
      request.prompt = handle->request().prompt;
      request.client = handle;
      request.use_prefix_cache = handle->request().use_prefix_cache;
      request.prompt_logits = handle->request().prompt_logprobs;
      request.after = first;
      try {
        const RequestId id = scheduler_->submit(std::move(request));
        if (first == 0) first = id;
      } catch (...) {
        handle->on_error(std::current_exception());
      }
    }
  }
}

// Nothing that comes after this is taken in, and what has come is failed.
void EngineLoop::give_up() {
  const std::string why = fmt::format("the device is lost, the program has to be started again: {}", runner_->lost);
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) return;
    lost_ = why;
  }
  log_.error("{}", why);
  take_in();
  scheduler_->fail_all(std::make_exception_ptr(DeviceLostError(why)));
}

void EngineLoop::work() {
  for (;;) {
    std::vector<std::function<void(Engine&)>> jobs;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || nudge_ || !incoming_.empty() || !jobs_.empty() || !scheduler_->idle(); });
      if (stop_) break;
      nudge_ = false;
      jobs.swap(jobs_);
    }
    for (const auto& job : jobs) job(engine_);
    take_in();
    const Duration start = clock_.now();
    const uint64_t prefilled = scheduler_->prefilled(), steps = scheduler_->steps();
    try {
      scheduler_->step();
    } catch (const std::exception& error) {  // a defect of ours: nothing that waits may wait for ever
      log_.error("the scheduler failed: {}", error.what());
      scheduler_->fail_all(std::current_exception());
    }
    if (!runner_->lost.empty()) give_up();
    const double took = seconds(clock_.now() - start);
    {
      const std::lock_guard lock(mutex_);
      snapshot_.step_seconds += took;
      if (scheduler_->steps() > steps && scheduler_->prefilled() == prefilled) remember(took);
    }
    publish();
    count_queued();
  }
  take_in();
  scheduler_->fail_all(std::make_exception_ptr(BusyError("the server is shutting down")));
  publish();
  const std::lock_guard lock(mutex_);
  for (const auto& job : jobs_) job(engine_);
  jobs_.clear();
}

}  // namespace ef
