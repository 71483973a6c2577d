#include "expertflow/engine/cached_experts.h"

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/engine/row_groups.h"
#include "expertflow/predict/regime.h"

namespace ef {
namespace {

class Cached final : public CachedExperts {
 public:
  Cached(const Config& config, const ExpertStore& store, ExpertCache& cache, CopyPipeline& pipeline, Backend& backend,
         const Clock& clock, const CachedExpertsOptions& options)
      : config_(config),
        store_(store),
        cache_(cache),
        pipeline_(pipeline),
        backend_(backend),
        clock_(clock),
        options_(options) {}
  ~Cached() override { close_step(); }

  void begin_step() override {
    close_step();                               // one that ended with an exception
    if (ahead_) pipeline_.cancel_prefetches();  // what it left in the queue
    step_ = cache_.begin_step();
    ++stats_.steps;
  }
  void end_step() override {
    close_step();
    if (options_.evict_every_step) cache_.evict_all();
  }
  void run(LayerId layer, const float* x, const RoutingView& routing, const ExpertsOut& out, Stream& stream) override;
  CachedExpertsStats stats() const override { return stats_; }
  ExpertUse use() const override {
    const AccessCounts& counts = cache_.counts();
    ExpertUse use(size_t(counts.layers()));
    for (LayerId l = 0; l < counts.layers(); ++l)
      for (ExpertId e = 0; e < counts.experts(l); ++e) use[size_t(l)].push_back(counts.rows({l, e}));
    return use;
  }
  void set_ahead(ExpertsAhead* ahead) override { ahead_ = ahead; }

 private:
  struct Ready {  // resident and pinned, to be computed
    ExpertId expert = -1;
    const std::byte* slot = nullptr;
  };
  // One layer's event on its way through the cache.
  struct Event {
    ExpertCache::Request request;
    const AssignmentGroups* groups = nullptr;
    const float* x = nullptr;
    float* expert_out = nullptr;
    Stream* stream = nullptr;
    int top_k = 0;
    RoutingView host;    // the event's choices
    bool whole = false;  // of all rows of the step
    std::vector<ExpertCache::Grant> granted;
    std::vector<ExpertId> deferred;  // still without a slot
    std::vector<Ready> ready;
    std::vector<ExpertId> coming;  // in flight
    std::exception_ptr error;      // the first copy that failed
  };

  struct StepGuard {
    Cached& self;
    ~StepGuard() { self.end_step(); }
  };
  void close_step() {
    if (step_ != 0) cache_.end_step(step_);
    step_ = 0;
  }
  void run_rows(LayerId layer, const float* x, const RoutingView& host, bool whole, const float* weights, float* out,
                Stream& stream);
  void run_grouped(LayerId layer, const float* x, const RoutingView& routing, int64_t block, float* out,
                   Stream& stream);
  void run_blocks(LayerId layer, const float* x, const RoutingView& routing, int64_t block, const int32_t* ids,
                  const float* weights, float* out, Stream& stream);
  void serve(Event& event);
  void cancel_unwanted(const Event& event);
  void start_copies(Event& event);
  void compute_ready(Event& event);
  void await_copies(Event& event);
  void collect_arrived(Event& event);
  float* scratch(uint64_t floats);

  const Config& config_;
  const ExpertStore& store_;
  ExpertCache& cache_;
  CopyPipeline& pipeline_;
  Backend& backend_;
  const Clock& clock_;
  CachedExpertsOptions options_;
  StepId step_ = 0;
  int64_t step_rows_ = 0;
  ExpertsAhead* ahead_ = nullptr;
  Buffer scratch_;
  std::vector<int32_t> host_ids_;
  CachedExpertsStats stats_;
};

void Cached::run(LayerId layer, const float* x, const RoutingView& routing, const ExpertsOut& out, Stream& stream) {
  if (routing.tokens == 0) return;
  if (step_ == 0) {  // outside of a step: one of its own, which ends even if this throws
    begin_step();
    const StepGuard guard{*this};
    run(layer, x, routing, out, stream);
    return;
  }
  const uint64_t row_bytes = uint64_t(routing.top_k) * uint64_t(config_.hidden) * sizeof(float);
  const int64_t block = std::clamp<int64_t>(int64_t(options_.scratch_bytes / row_bytes), 1, routing.tokens);
  host_ids_.resize(size_t(routing.tokens * routing.top_k));
  backend_.copy_to_host(host_ids_.data(), routing.ids, host_ids_.size() * sizeof(int32_t), stream);
  stream.synchronize();
  step_rows_ = routing.tokens;
  if (block < routing.tokens && regime_of(routing.tokens).group_tokens && backend_.memory_is_host()) {
    run_grouped(layer, x, routing, block, out.out, stream);
  } else {
    run_blocks(layer, x, routing, block, host_ids_.data(), routing.weights, out.out, stream);
  }
  if (out.add_to) backend_.add_scaled(stream, out.add_to, out.out, out.add_scale, routing.tokens * config_.hidden);
}

// Rows that are alike go together: each of the blocks then asks for fewer experts. A row's result does not depend on
// its company.
void Cached::run_grouped(LayerId layer, const float* x, const RoutingView& routing, int64_t block, float* out,
                         Stream& stream) {
  const int64_t hidden = config_.hidden, top_k = routing.top_k;
  const std::vector<int32_t> order = group_rows(x, routing.tokens, hidden, block);
  std::vector<int32_t> ids(host_ids_.size());
  std::vector<float> weights(ids.size());
  Buffer memory = backend_.allocate(uint64_t(2 * routing.tokens * hidden) * sizeof(float), {Region::kDynamic, "rows"});
  float *const from = memory.as<float>(), *const to = from + routing.tokens * hidden;
  for (int64_t i = 0; i < routing.tokens; ++i) {
    const int64_t row = order[size_t(i)];
    std::copy_n(x + row * hidden, hidden, from + i * hidden);
    std::copy_n(host_ids_.data() + row * top_k, top_k, ids.data() + i * top_k);
    std::copy_n(routing.weights + row * top_k, top_k, weights.data() + i * top_k);
  }
  ++stats_.grouped;
  run_blocks(layer, from, routing, block, ids.data(), weights.data(), to, stream);
  for (int64_t i = 0; i < routing.tokens; ++i) std::copy_n(to + i * hidden, hidden, out + order[size_t(i)] * hidden);
}

void Cached::run_blocks(LayerId layer, const float* x, const RoutingView& routing, int64_t block, const int32_t* ids,
                        const float* weights, float* out, Stream& stream) {
  for (int64_t row = 0; row < routing.tokens; row += block) {
    const int64_t rows = std::min(block, routing.tokens - row), at = row * routing.top_k;
    const RoutingView host{rows, routing.top_k, ids + at, nullptr};
    run_rows(layer, x + row * config_.hidden, host, rows == routing.tokens, weights + at, out + row * config_.hidden,
             stream);
  }
}

void Cached::run_rows(LayerId layer, const float* x, const RoutingView& host, bool whole, const float* weights,
                      float* out, Stream& stream) {
  const AssignmentGroups groups = group_assignments(host, store_.experts(layer));
  std::vector<int32_t> tokens(groups.experts.size());
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(groups.of(i).size());
  Event event;
  event.request = {step_,
                   layer,
                   groups.experts,
                   tokens,
                   host.tokens >= options_.transient_rows,
                   host.tokens,
                   regime_of(step_rows_).eager_eviction};
  event.groups = &groups;
  event.x = x;
  event.expert_out = scratch(uint64_t(host.tokens) * uint64_t(host.top_k) * uint64_t(config_.hidden));
  event.stream = &stream;
  event.top_k = host.top_k;
  event.host = host;
  event.whole = whole;
  ++stats_.layer_events;
  serve(event);
  backend_.combine(stream, {host.tokens, config_.hidden, host.top_k, event.expert_out, weights, out});
  stream.synchronize();  // the scratch is used again
}

void Cached::serve(Event& event) {
  const bool ahead = ahead_ && event.whole;
  if (ahead) {
    ahead_->on_event(event.request.layer, event.groups->experts);
    cancel_unwanted(event);
  }
  cache_.open(event.request, event.granted, event.deferred);
  start_copies(event);
  if (ahead) ahead_->look(event.request.layer, event.host);
  for (;;) {
    compute_ready(event);
    if (event.error) std::rethrow_exception(event.error);  // pins end with the step
    if (!event.deferred.empty()) {
      const uint64_t seen = cache_.changes();
      cache_.grant(event.request, event.deferred, event.granted);
      if (!event.granted.empty()) {
        ++stats_.waves;
        start_copies(event);
        if (!event.ready.empty()) continue;
      } else if (event.coming.empty()) {
        cache_.wait_change(seen);  // others' copies or steps hold the pool
        continue;
      }
    }
    if (event.coming.empty()) return;
    await_copies(event);
  }
}

// A guess about this layer that turned out wrong makes room before the layer's own copies are placed.
void Cached::cancel_unwanted(const Event& event) {
  const auto& wanted = event.groups->experts;  // ascending
  pipeline_.cancel_prefetches([&](ExpertKey key) {
    return key.layer == event.request.layer && !std::binary_search(wanted.begin(), wanted.end(), key.expert);
  });
}

void Cached::start_copies(Event& event) {
  std::vector<Copy> copies;
  for (const ExpertCache::Grant& grant : event.granted) {
    const ExpertKey key{event.request.layer, grant.expert};
    if (grant.fill) copies.push_back({key, grant.slot});
    if (grant.state == ExpertState::kResident) {
      event.ready.push_back({grant.expert, grant.slot.data()});
    } else {
      if (!grant.fill) pipeline_.promote(key);  // a prefetch that is late
      event.coming.push_back(grant.expert);
    }
  }
  pipeline_.submit(copies, CopyPriority::kDemand);
}

void Cached::compute_ready(Event& event) {
  if (event.ready.empty()) return;
  const ExpertLayout& layout = store_.layout(event.request.layer);
  std::vector<ExpertGroup> groups;
  for (const Ready& ready : event.ready) {
    const auto& experts = event.groups->experts;  // ascending
    const size_t i = size_t(std::lower_bound(experts.begin(), experts.end(), ready.expert) - experts.begin());
    groups.push_back({view_slot(layout, ready.slot), event.groups->of(i)});
  }
  ExpertsArgs args;
  args.activation = config_.activation;
  args.hidden = config_.hidden;
  args.ffn = config_.expert_ffn;
  args.top_k = event.top_k;
  args.groups = groups;
  args.x = event.x;
  args.out = event.expert_out;
  backend_.experts(*event.stream, args);
  event.stream->synchronize();  // a slot is let go only when nothing reads it any more
  for (const Ready& ready : event.ready) cache_.release(event.request.step, {event.request.layer, ready.expert});
  event.ready.clear();
}

void Cached::await_copies(Event& event) {
  std::vector<ExpertKey> keys;
  for (const ExpertId expert : event.coming) keys.push_back({event.request.layer, expert});
  const Duration begin = clock_.now();
  cache_.wait_any(keys);
  stats_.stall_seconds += seconds(clock_.now() - begin);
  collect_arrived(event);
}

void Cached::collect_arrived(Event& event) {
  std::vector<ExpertId> coming;
  for (const ExpertId expert : event.coming) {
    const ExpertKey key{event.request.layer, expert};
    const ExpertCache::Look look = cache_.look(key);
    if (look.state == ExpertState::kInFlight) {
      coming.push_back(expert);
    } else if (look.state == ExpertState::kResident) {
      event.ready.push_back(
          {expert, look.slot.data()});  // not where it was promised: a cancelled copy may have been renewed
    } else {
      cache_.release(event.request.step, key);
      if (!look.error) event.deferred.push_back(expert);  // a prefetch that was cancelled before it could be promoted
      if (look.error && !event.error) event.error = look.error;
    }
  }
  event.coming = std::move(coming);
}

float* Cached::scratch(uint64_t floats) {
  if (scratch_.size() < floats * sizeof(float)) {
    scratch_ = Buffer();  // before the larger one: never both
    scratch_ = backend_.allocate(floats * sizeof(float), {Region::kDynamic, "expert outputs"});
  }
  return scratch_.as<float>();
}

}  // namespace

std::unique_ptr<CachedExperts> make_cached_experts(const Config& config, const ExpertStore& store, ExpertCache& cache,
                                                   CopyPipeline& pipeline, Backend& backend, const Clock& clock,
                                                   const CachedExpertsOptions& options) {
  return std::make_unique<Cached>(config, store, cache, pipeline, backend, clock, options);
}

namespace {

DiskReaderOptions disk_options(const ExpertTierOptions& options) {
  DiskReaderOptions disk = options.disk;
  disk.lanes = options.pipeline.workers;
  return disk;
}

}  // namespace

ExpertTier::ExpertTier(const Config& config, const ExpertStore& store, Backend& backend, const Clock& clock,
                       const ExpertTierOptions& options)
    : reader_(store, disk_options(options)) {
  const int layers = int(config.layers.size());
  CacheGeometry geometry = geometry_of(store, layers);
  const uint64_t bytes = geometry.pool_bytes(options.budget_bytes), page = geometry.page_bytes;
  EF_CHECK(bytes >= geometry.largest_footprint(), ConfigError,
           "expert memory: {} bytes are too few: the largest expert takes {} bytes (all experts {})",
           options.budget_bytes, geometry.largest_footprint(), geometry.total_footprint());
  auto policy = make_policy(options.policy, {layers, &clock, 0});
  memory_ = backend.allocate(bytes + page, {Region::kElastic, "expert slots"});
  // Slots begin at page boundaries of the address space, as direct reads want them.
  std::byte* begin = memory_.data() + (page - reinterpret_cast<uintptr_t>(memory_.data()) % page) % page;
  cache_ =
      std::make_unique<ExpertCache>(std::move(geometry), std::move(policy), std::span(begin, bytes), options.cache);
  if (options.bytes_per_second > 0) paced_ = std::make_unique<PacedReader>(reader_, options.bytes_per_second, clock);
  ExpertReader& reader = paced_ ? static_cast<ExpertReader&>(*paced_) : reader_;
  pipeline_ = std::make_unique<CopyPipeline>(reader, *cache_, clock, options.pipeline);
  if (options.calibration)
    calibrator_ = std::make_unique<LinkCalibrator>(reader, cache_->geometry(), clock, *options.calibration);
  experts_ = make_cached_experts(config, store, *cache_, *pipeline_, backend, clock, options.experts);
}

bool ExpertTier::calibrate() {
  if (!calibrator_ || !calibrator_->due()) return false;
  pipeline_->cancel_prefetches();
  pipeline_->drain();
  calibrator_->run();
  return true;
}

size_t ExpertTier::warm_up(std::span<const ExpertKey> keys, const std::function<void(uint64_t, uint64_t)>& progress) {
  std::vector<ExpertKey> placed;
  uint64_t total = 0, done = 0;
  for (const ExpertKey key : keys) {
    const auto grant = cache_->preload(key);
    if (!grant) continue;
    const Copy copy{key, grant->slot};
    pipeline_->submit({&copy, 1}, CopyPriority::kDemand);
    placed.push_back(key);
    total += cache_->geometry().footprint(key.layer);
  }
  size_t came = 0;
  for (const ExpertKey key : placed) {
    cache_->wait_any({&key, 1});
    came += cache_->look(key).state == ExpertState::kResident;
    if (progress) progress(done += cache_->geometry().footprint(key.layer), total);
  }
  return came;
}

}  // namespace ef
