// Experts in tiers: the ones that a layer needs are pinned in the cache, the missing ones are copied while the resident
// ones are computed, and outputs are combined in routing-rank order at the end, so that results are bit for bit those
// of AllResident whatever was near, whatever came late and whatever had to leave.
//
// Fewer slots than distinct experts: waves. What has been computed gives its slot to the next. One slot, the largest of
// the model, is enough; top_k slots avoid waves in decode, and a pool of layers * top_k keeps one token's cycle.
#pragma once
#include <memory>
#include <optional>

#include "expertflow/cache/expert_cache.h"
#include "expertflow/model/experts.h"
#include "expertflow/transfer/calibration.h"
#include "expertflow/transfer/copy_pipeline.h"
#include "expertflow/transfer/disk_reader.h"
#include "expertflow/transfer/paced_reader.h"

namespace ef {

/// Looks ahead while layers run. What it has copied is a hint: nothing depends on its being right. Called for events
/// whose rows are all served at once.
class ExpertsAhead {
 public:
  virtual ~ExpertsAhead() = default;
  /// A layer asks for these experts, ascending; nothing of the event has been placed or queued yet.
  virtual void on_event(LayerId layer, std::span<const ExpertId> wanted) = 0;
  /// The layer's own copies are under way. host: the step's choices, without weights.
  virtual void look(LayerId layer, const RoutingView& host) = 0;
};

/// Rows that chose each expert: [layer][expert]; dense layers are empty.
using ExpertUse = std::vector<std::vector<uint64_t>>;

struct CachedExpertsOptions {
  /// Rows of a layer event from which it counts as prefill: what it brings in leaves first (ExpertCacheOptions).
  int64_t transient_rows = 32;
  /// Outputs of a layer before they are combined, [rows * top_k, hidden] floats: larger chunks are run in blocks of
  /// rows.
  uint64_t scratch_bytes = 32 << 20;
  /// For tests: everything leaves at the end of each step and comes back elsewhere.
  bool evict_every_step = false;
};

struct CachedExpertsStats {
  uint64_t steps = 0, layer_events = 0;
  uint64_t waves = 0;        ///< further rounds of slots that an event needed beyond its first
  uint64_t grouped = 0;      ///< layer events whose rows were put together by likeness (row_groups.h)
  double stall_seconds = 0;  ///< run() had nothing to compute and waited for copies
};

class CachedExperts : public Experts {
 public:
  virtual CachedExpertsStats stats() const = 0;
  /// Since the beginning.
  virtual ExpertUse use() const = 0;
  /// Null: none. It must outlive its use. Between steps.
  virtual void set_ahead(ExpertsAhead* ahead) = 0;
};

/// All arguments must outlive the result. The cache's geometry is that of the store.
std::unique_ptr<CachedExperts> make_cached_experts(const Config& config, const ExpertStore& store, ExpertCache& cache,
                                                   CopyPipeline& pipeline, Backend& backend, const Clock& clock,
                                                   const CachedExpertsOptions& options = {});

/// Cache, pipeline and experts over one pool of backend memory, wired and owned.
struct ExpertTierOptions {
  uint64_t budget_bytes = 0;  ///< of the pool; whole pages of it are used (CacheGeometry::pool_bytes)
  std::string policy = "next-use";
  ExpertCacheOptions cache;
  CopyPipelineOptions pipeline;
  DiskReaderOptions disk;       ///< lanes: those of the pipeline's workers
  double bytes_per_second = 0;  ///< that reads may take at most; 0: as many as come
  CachedExpertsOptions experts;
  std::optional<CalibrationOptions> calibration;  ///< nothing: none
};
class ExpertTier {
 public:
  /// ConfigError if the largest expert does not fit the budget or the policy is unknown. store, backend and clock must
  /// outlive it.
  ExpertTier(const Config& config, const ExpertStore& store, Backend& backend, const Clock& clock,
             const ExpertTierOptions& options);
  CachedExperts& experts() { return *experts_; }
  /// Fills free memory with these, the first ones first, as far as it goes; progress(done, total) in bytes may be
  /// empty. What cannot be read is left out. Returns how many came. Between steps.
  size_t warm_up(std::span<const ExpertKey> keys, const std::function<void(uint64_t, uint64_t)>& progress = {});
  ExpertCache& cache() { return *cache_; }
  CopyPipeline& pipeline() { return *pipeline_; }
  const DiskReader& reader() const { return reader_; }
  /// Measures the slow tier if it is time; whether it did. Between steps: waits for copies under way.
  bool calibrate();
  const LinkCalibrator* calibrator() const { return calibrator_.get(); }

 private:
  DiskReader reader_;
  std::unique_ptr<PacedReader> paced_;
  Buffer memory_;
  std::unique_ptr<ExpertCache> cache_;
  std::unique_ptr<CopyPipeline> pipeline_;
  std::unique_ptr<LinkCalibrator> calibrator_;
  std::unique_ptr<CachedExperts> experts_;
};

}  // namespace ef
