// Experts in tiers: the ones that a layer needs are pinned in the cache, the missing ones are copied while the resident
// ones are computed, and outputs are combined in routing-rank order at the end, so that results are bit for bit those
// of AllResident whatever was near, whatever came late and whatever had to leave.
//
// Fewer slots than distinct experts: waves. What has been computed gives its slot to the next. One slot, the largest of
// the model, is enough; top_k slots avoid waves in decode, and a pool of layers * top_k keeps one token's cycle.
#pragma once
#include <memory>

#include "expertflow/cache/expert_cache.h"
#include "expertflow/model/experts.h"
#include "expertflow/transfer/copy_pipeline.h"
#include "expertflow/transfer/disk_reader.h"

namespace ef {

/// Guesses which experts layers further on will want. A hint: nothing depends on its being right.
class ExpertForecast {
 public:
  virtual ~ExpertForecast() = default;
  /// Called while the copies of `layer`, of which a step runs so many rows, are under way; likeliest first.
  virtual void forecast(LayerId layer, int64_t rows, Stream& stream, std::vector<ExpertKey>& likely) = 0;
};

struct CachedExpertsOptions {
  /// Rows of a layer event from which it counts as prefill: what it brings in leaves first (ExpertCacheOptions).
  int64_t transient_rows = 32;
  /// Outputs of a layer before they are combined, [rows * top_k, hidden] floats: larger chunks are run in blocks of
  /// rows.
  uint64_t scratch_bytes = 32 << 20;
  /// A forecast is asked for events of at most so many rows: more of them want nearly every expert anyway.
  int64_t forecast_rows = 8;
  /// Share of the pool that experts may hold which a forecast named and no layer has asked for yet.
  double forecast_share = 0.25;
  /// For tests: everything leaves at the end of each step and comes back elsewhere.
  bool evict_every_step = false;
};

struct CachedExpertsStats {
  uint64_t steps = 0, layer_events = 0;
  uint64_t waves = 0;        ///< further rounds of slots that an event needed beyond its first
  double stall_seconds = 0;  ///< run() had nothing to compute and waited for copies
};

class CachedExperts : public Experts {
 public:
  virtual CachedExpertsStats stats() const = 0;
  /// Null: none. It must outlive its use. Between steps.
  virtual void set_forecast(ExpertForecast* forecast) = 0;
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
  DiskReaderOptions disk;  ///< lanes: those of the pipeline's workers
  CachedExpertsOptions experts;
};
class ExpertTier {
 public:
  /// ConfigError if the largest expert does not fit the budget or the policy is unknown. store, backend and clock must
  /// outlive it.
  ExpertTier(const Config& config, const ExpertStore& store, Backend& backend, const Clock& clock,
             const ExpertTierOptions& options);
  CachedExperts& experts() { return *experts_; }
  ExpertCache& cache() { return *cache_; }
  CopyPipeline& pipeline() { return *pipeline_; }
  const DiskReader& reader() const { return reader_; }

 private:
  DiskReader reader_;
  Buffer memory_;
  std::unique_ptr<ExpertCache> cache_;
  std::unique_ptr<CopyPipeline> pipeline_;
  std::unique_ptr<CachedExperts> experts_;
};

}  // namespace ef
