// The engine: a model, a backend, a KV cache and the experts in their tiers, wired together. One step is one forward
// call. Not thread-safe: one step at a time (callers queue; the server's scheduler owns it).
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "expertflow/backend/memory_regions.h"
#include "expertflow/base/clock.h"
#include "expertflow/base/log.h"
#include "expertflow/base/thread_pool.h"
#include "expertflow/engine/engine_options.h"
#include "expertflow/engine/foresight.h"
#include "expertflow/engine/memory_plan.h"
#include "expertflow/engine/predictor_file.h"
#include "expertflow/model/model.h"
#include "expertflow/transfer/calibration.h"

namespace ef {

/// The largest logits of each row that asked for logits, falling; among equals the lower id first. Valid until the next
/// step.
struct TopLogits {
  int top = 0;
  std::span<const TokenId> ids;   ///< [rows, top]
  std::span<const float> logits;  ///< [rows, top]
};

struct ExpertStats {
  uint64_t hits = 0, misses = 0;  ///< distinct experts a layer event asked for: resident, or not
  uint64_t late_hits = 0;         ///< of misses, those that were on their way
  uint64_t bytes_read = 0;
  double read_seconds = 0;      ///< at least one read was under way
  double bytes_per_second = 0;  ///< of reads, of late, while any was under way; 0: not measured yet
  uint64_t read_retries = 0, checksum_rereads = 0;
  std::string io;  ///< how experts are read; empty if all are resident
  uint64_t evictions = 0, waves = 0;
  double stall_seconds = 0;  ///< compute waited for reads
  // read ahead: experts, of which asked for, still on their way then; not asked for; taken back before they were read
  uint64_t ahead = 0, ahead_used = 0, ahead_late = 0, ahead_wasted = 0, ahead_cancelled = 0;
  uint64_t ahead_bytes = 0, wasted_bytes = 0;  ///< read ahead; of them and of what was cancelled, never used
  uint64_t ahead_used_bytes = 0;               ///< read ahead and there when asked for
  bool all_resident = false;                   ///< the fast tier holds every expert, or has room for it
  double cache_utilization = 1;                ///< share of the fast tier that holds experts
  std::optional<ForesightStats> foresight;     ///< nothing where there is nothing to look ahead for
  std::vector<LayerCacheStats> layers;         ///< by LayerId; empty where every expert is resident
  std::optional<LinkCalibration> calibration;  ///< nothing where none was asked for
  uint64_t eager_evictions = 0;                ///< experts that left as soon as a step of many rows had used them
  uint64_t grouped_events = 0;                 ///< layer events whose rows were put together by likeness
  DriftStats drift;                            ///< of backends whose arithmetic is checked while they run
  double hit_rate() const { return hits + misses ? double(hits) / double(hits + misses) : 1.0; }
};

/// What the fast tier holds at a moment.
struct ExpertSlots {
  uint64_t resident = 0, in_flight = 0, pinned = 0;  ///< experts; pinned: used by the step under way
  uint64_t pool_bytes = 0, used_bytes = 0;
};

/// The counts under the names of dashboards. latencies: seconds of steps of few rows.
ExpertMetrics metrics_of(const ExpertStats& stats, std::span<const double> latencies);

/// What is held of the backend's memory, and by what. Memory that ops and reads take beside is not counted on a CPU.
struct MemoryReport {
  std::array<RegionReport, kRegions> regions;  ///< by Region
  std::vector<MemoryPiece> pieces;             ///< longest held first; time is the number of the step, 0: loading
  uint64_t steps = 0;
  std::optional<CacheStats> slots;  ///< of the elastic region, where experts come and go
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
  const Model& model() const { return *model_; }
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
  /// A second observer beside it, for traces.
  void set_recorder(StepObserver* recorder) { recorder_ = recorder; }

  /// Replaces the experts' tier by one with another budget ("50%", bytes, "min"); statistics restart. Between steps.
  /// ConfigError if it cannot work; the budget before stays then.
  void set_expert_memory(const std::string& budget);
  /// What the flags of the same names say, from now on. Between steps. ConfigError as for them; all is off then.
  void set_prefetch(const std::string& async_prefetch, const std::string& predictor, const std::string& horizon);
  ExpertStats expert_stats() const;
  /// Whether using the expert now costs no copy. From any thread between changes of the budget.
  bool expert_is_near(ExpertKey key) const;
  /// By expert of the layer: 0 absent, 1 in flight, 2 resident; empty for dense layers. As expert_is_near().
  std::vector<uint8_t> expert_states(LayerId layer) const;
  /// As expert_is_near(); nothing where every expert is resident.
  std::optional<ExpertSlots> expert_slots() const;
  /// metrics_of() now.
  ExpertMetrics expert_metrics() const;
  /// Compute waited for experts, since the tier was built.
  double stall_seconds() const;
  /// As --warmup says: from the profile, by computing a few tokens, or not at all. Before the first step.
  struct WarmUp {
    std::string how;  ///< "profile", "tokens", "off"
    size_t experts = 0;
    double seconds = 0;
    double demand = 0;  ///< share of the accesses that the profile predicts which these experts serve
  };
  /// tokens_otherwise: `auto` computes a few tokens where there is no profile.
  WarmUp warm_up(const std::function<void(uint64_t, uint64_t)>& progress = {}, bool tokens_otherwise = false);
  /// Adds this run's use of experts to the profile of --expert-profile. Says so on the log, and why if it cannot.
  void save_profile();
  MemoryReport memory_report() const;
  /// From any thread.
  std::array<RegionReport, kRegions> memory_regions() const;

 private:
  std::span<const float> run(const Batch& batch, int top);
  void note_latency(double seconds);
  void reserve_regions();
  void build_experts();
  void log_io(const IoState& state) const;
  void calibrate();
  double expected_layer_seconds();
  void wire_foresight();
  PredictorChoice choose_predictor() const;
  std::filesystem::path profile_path() const;
  EngineOptions options_;
  const Log& log_;
  SteadyClock clock_;
  std::unique_ptr<ModelFiles> files_;
  MemoryPlan plan_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<MemoryRegions> regions_;  // outlives whatever holds memory
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RopeTable> rope_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<State> state_;
  struct Tiers;  // cache, copy pipeline, experts
  std::unique_ptr<Tiers> tiers_;
  StepObserver *observer_ = nullptr, *recorder_ = nullptr;
  uint64_t steps_ = 0, rows_ = 0;
  std::vector<double> latencies_;  // of the latest steps of few rows, a ring
  size_t next_latency_ = 0;
  ExpertUse saved_use_;  // what the profile has already
};

}  // namespace ef
