// The engine: a model, a backend, a KV cache and the experts in their tiers, wired together. One step is one forward
// call. Not thread-safe: one step at a time (callers queue; the server's scheduler owns it).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "expertflow/base/clock.h"
#include "expertflow/base/log.h"
#include "expertflow/base/thread_pool.h"
#include "expertflow/engine/engine_options.h"
#include "expertflow/engine/memory_budget.h"
#include "expertflow/engine/model_files.h"
#include "expertflow/model/model.h"

namespace ef {

/// Tokens of KV cache that --ctx-size means for a model.
int64_t context_tokens(int64_t ctx_size, const Config& config);

/// Where memory goes and why; printed by the CLI at start.
struct MemoryPlan {
  uint64_t resident_bytes = 0;  ///< weights that are not routed experts
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint64_t expert_budget = 0;  ///< effective
  uint64_t expert_total = 0;   ///< all routed experts
  std::string explanation;     ///< how the budget came about
};

/// What an engine with these options will take beside experts, from headers alone; expert_budget is left 0.
MemoryPlan plan_memory(const ModelFiles& files, const EngineOptions& options);
/// The same as the numbers that a budget is resolved against.
BudgetFacts budget_facts_of(const ModelFiles& files, const MemoryPlan& plan);

/// The largest logits of each row that asked for logits, falling; among equals the lower id first. Valid until the next
/// step.
struct TopLogits {
  int top = 0;
  std::span<const TokenId> ids;   ///< [rows, top]
  std::span<const float> logits;  ///< [rows, top]
};

struct ExpertStats {
  uint64_t hits = 0, misses = 0;  ///< distinct experts a layer event asked for: resident, or not
  uint64_t bytes_read = 0;
  double read_seconds = 0;  ///< at least one read was under way
  uint64_t read_retries = 0, checksum_rereads = 0;
  std::string io;  ///< how experts are read; empty if all are resident
  uint64_t evictions = 0, waves = 0;
  double stall_seconds = 0;  ///< compute waited for reads
  // read ahead: experts, of which asked for, still on their way then; not asked for; taken back before they were read
  uint64_t ahead = 0, ahead_used = 0, ahead_late = 0, ahead_wasted = 0, ahead_cancelled = 0;
  DriftStats drift;  ///< of backends whose arithmetic is checked while they run
  double hit_rate() const { return hits + misses ? double(hits) / double(hits + misses) : 1.0; }
};

class Engine {
 public:
  /// progress(done, total) while weights are read; may be empty. Throws ConfigError when the budget cannot work.
  Engine(std::unique_ptr<ModelFiles> files, const EngineOptions& options, const Log& log,
         const std::function<void(uint64_t, uint64_t)>& progress = {});
  ~Engine();

  const Config& config() const { return files_->config; }
  const ModelFiles& files() const { return *files_; }
  const EngineOptions& options() const { return options_; }
  const MemoryPlan& plan() const { return plan_; }
  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }  ///< that steps are queued on
  KvCache& kv() { return *kv_; }
  int64_t context_length() const { return kv_->options().max_tokens; }

  /// See forward(). Logits are valid until the next step.
  std::span<const float> step(const Batch& batch);
  /// How many of the largest logits the backend finds by itself; 0: step_top() is not to be called.
  int most_top() const;
  /// A step that gives the largest logits alone: cheaper by the copy of the others, and by looking through them.
  TopLogits step_top(const Batch& batch, int top);
  void set_observer(StepObserver* observer) { observer_ = observer; }

  /// Replaces the experts' tier by one with another budget ("50%", bytes, "min"); statistics restart. Between steps.
  /// ConfigError if it cannot work; the budget before stays then.
  void set_expert_memory(const std::string& budget);
  ExpertStats expert_stats() const;

 private:
  std::span<const float> run(const Batch& batch, int top);
  void build_experts(bool rest_is_taken);
  Budget budget_of(bool rest_is_taken) const;
  void log_io(const IoState& state) const;
  void wire_read_ahead();
  EngineOptions options_;
  const Log& log_;
  SteadyClock clock_;
  std::unique_ptr<ModelFiles> files_;
  MemoryPlan plan_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RopeTable> rope_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<State> state_;
  struct Tiers;  // cache, copy pipeline, experts
  std::unique_ptr<Tiers> tiers_;
  StepObserver* observer_ = nullptr;
};

}  // namespace ef
