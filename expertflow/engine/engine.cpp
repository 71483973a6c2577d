#include "expertflow/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "expertflow/base/errors.h"
#include "expertflow/base/topology.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/engine_tiers.h"
#include "expertflow/engine/observers.h"
#include "expertflow/engine/prefetch_options.h"
#include "expertflow/engine/tune.h"

namespace ef {

namespace {

void check(const EngineOptions& o) {
  EF_CHECK(o.parallel >= 1, ConfigError, "parallel: expected at least 1, found {}", o.parallel);
  EF_CHECK(o.ubatch >= 1, ConfigError, "ubatch-size: expected at least 1, found {}", o.ubatch);
  EF_CHECK(o.batch_size >= 1, ConfigError, "batch-size: expected at least 1, found {}", o.batch_size);
  // Positions are 32-bit, and so are sums of a few of them.
  constexpr int64_t kMaxContext = 1 << 30;
  constexpr int kMaxThreads = 4096;
  EF_CHECK(o.ctx_size >= -1 && o.ctx_size <= kMaxContext, ConfigError, "ctx-size: expected -1 to {}, found {}",
           kMaxContext, o.ctx_size);
  EF_CHECK(o.io_threads >= 1 && o.io_threads <= kMaxThreads, ConfigError, "io-threads: expected 1 to {}, found {}",
           kMaxThreads, o.io_threads);
  EF_CHECK(o.drift_check >= 0, ConfigError, "drift-check: expected at least 0, found {}", o.drift_check);
  EF_CHECK(o.io_depth >= 1 && o.io_depth <= kMaxThreads, ConfigError, "io-depth: expected 1 to {}, found {}",
           kMaxThreads, o.io_depth);
  EF_CHECK(o.threads >= 0 && o.threads <= kMaxThreads, ConfigError, "threads: expected 0 to {}, found {}", kMaxThreads,
           o.threads);
  EF_CHECK(o.autotune == "on" || o.autotune == "off", ConfigError, "autotune: expected on or off, found \"{}\"",
           o.autotune);
  parse_io(o.io);
  parse_direct_io(o.direct_io);
  parse_io_limit(o.io_limit);
  parse_horizon(o.prediction_horizon);
  parse_prefetch_mode(o.async_prefetch);
  EF_CHECK(
      o.bandwidth_calibration == "start" || o.bandwidth_calibration == "periodic" || o.bandwidth_calibration == "off",
      ConfigError, "bandwidth-calibration: expected start, periodic or off, found \"{}\"", o.bandwidth_calibration);
  EF_CHECK(o.warmup == "auto" || o.warmup == "profile" || o.warmup == "tokens" || o.warmup == "off", ConfigError,
           "warmup: expected auto, profile, tokens or off, found \"{}\"", o.warmup);
  EF_CHECK(o.cache_type_k == o.cache_type_v, ConfigError,
           "cache-type-v: keys and values are cached in one type, found {} and {}", o.cache_type_k, o.cache_type_v);
  EF_CHECK(o.offload_device == "disk", ConfigError,
           "offload-device: a CPU build keeps experts outside the fast tier on 'disk', found '{}'", o.offload_device);
}

// Threads bound to cores of their own, if there are enough of these.
std::unique_ptr<ThreadPool> make_pool(const EngineOptions& o) {
  EF_CHECK(o.pin_threads == "auto" || o.pin_threads == "on" || o.pin_threads == "off", ConfigError,
           "pin-threads: expected auto, on or off, found \"{}\"", o.pin_threads);
  Topology topology = read_topology();
  std::vector<int>& processors = topology.processors;
  const int threads = o.threads > 0 ? o.threads : topology.threads;
  if (o.pin_threads == "off" || (o.pin_threads == "auto" && threads > topology.threads)) processors.clear();
  EF_CHECK(o.pin_threads != "on" || size_t(threads) <= processors.size(), ConfigError,
           "pin-threads: {} threads cannot be bound to {} processors", threads, processors.size());
  return std::make_unique<ThreadPool>(threads, processors);
}

// Tells on every way out that a step has ended.
struct StepEnd {
  Foresight* foresight;
  int uncaught = std::uncaught_exceptions();
  ~StepEnd() {
    if (foresight) foresight->end_step(std::uncaught_exceptions() > uncaught);
  }
};

}  // namespace

EngineOptions settled(EngineOptions o) {
  check(o);
  o.ubatch = std::min(o.ubatch, o.batch_size);
  return o;
}

KvType parse_kv_type(const std::string& text) {
  if (text == "f32") return KvType::kF32;
  if (text == "f16") return KvType::kF16;
  if (text == "bf16") return KvType::kBF16;
  fail<ConfigError>("cache-type: expected f16, bf16 or f32, found \"{}\"", text);
}

IoKind parse_io(const std::string& text) {
  if (text == "auto") return IoKind::kAuto;
  if (text == "uring") return IoKind::kUring;
  if (text == "pread") return IoKind::kPread;
  fail<ConfigError>("io: expected auto, uring or pread, found \"{}\"", text);
}

DirectIo parse_direct_io(const std::string& text) {
  if (text == "auto") return DirectIo::kAuto;
  if (text == "on") return DirectIo::kOn;
  if (text == "off") return DirectIo::kOff;
  fail<ConfigError>("direct-io: expected auto, on or off, found \"{}\"", text);
}

std::string kv_type_name(KvType type) { return type == KvType::kF32 ? "f32" : type == KvType::kF16 ? "f16" : "bf16"; }

Engine::Engine(std::unique_ptr<ModelFiles> files, const EngineOptions& options, const Log& log,
               const std::function<void(uint64_t, uint64_t)>& progress)
    : options_(settled(options)), log_(log), files_(std::move(files)) {
  const Config& c = files_->config;
  plan_ = plan_engine(*files_, options_);  // what cannot work is refused before anything is read
  const KvOptions kv = kv_options(c, options_);
  if (kv.max_tokens > c.context_length * options_.parallel)
    log_.warn("a context of {} tokens is longer than the {} that the model was made for", kv.max_tokens,
              c.context_length);

  pool_ = make_pool(options_);
  backend_ = make_backend(parse_device(options_.device), *pool_, options_);
  reserve_regions();
  files_->store->choose_layouts([&](Format f) { return backend_->weight_layout(Op::kExperts, f); });
  build_experts();
  if (tiers_->tier) log_io(tiers_->tier->reader().state());
  if (!options_.all_resident) files_->store->check_scales();  // a bad one fails here and not when it is first wanted
  model_ = std::make_unique<Model>();
  model_->config = c;
  model_->weights = load_weights(c, files_->binding, files_->checkpoint.directory, *backend_, progress);
  rope_ = std::make_unique<RopeTable>(c.rope, c.context_length);
  kv_ = std::make_unique<KvCache>(c, *backend_, kv);
  state_ = std::make_unique<State>(c, *backend_, options_.ubatch, logit_rows(options_));
  if (plan_.reserved && options_.autotune == "on")
    tune_backend(*backend_, *stream_, *model_, tiers_->experts(), tuning_file(), log_);
  wire_foresight();
}

Engine::~Engine() = default;

// Where memory is reserved nothing is taken from the device after this.
void Engine::reserve_regions() {
  regions_ = std::make_unique<MemoryRegions>(*backend_);
  for (const Region region : {Region::kStatic, Region::kDynamic, Region::kElastic})
    if (plan_.reserved) regions_->reserve(region, plan_.taken(region));
  stream_ = backend_->make_stream();
  for (const PlanPart& part : plan_.parts)
    if (plan_.reserved && part.name == "scratch") stream_->reserve(part.reserved());
}

// As the plan says.
void Engine::build_experts() {
  auto tiers = std::make_unique<Tiers>();
  if (options_.all_resident || !backend_->memory_is_host()) {
    DriftOptions drift;
    drift.every = options_.batch_invariant ? 0 : options_.drift_check;
    drift.rounds_to_8_bits = cuda_options(options_).round_activations;
    tiers->all_resident = make_all_resident(files_->config, *files_->store, *backend_, drift);
    if (plan_.reserved) tiers->all_resident->reserve(options_.ubatch);
  } else {
    ExpertTierOptions tier;
    tier.budget_bytes = plan_.expert_budget;
    tier.policy = options_.eviction_policy;
    tier.pipeline.workers = options_.io_threads;
    tier.disk.io = parse_io(options_.io);
    tier.disk.direct = parse_direct_io(options_.direct_io);
    tier.disk.depth = options_.io_depth;
    tier.bytes_per_second = parse_io_limit(options_.io_limit);
    constexpr Duration kPeriod = std::chrono::minutes(5);
    if (options_.bandwidth_calibration != "off")
      tier.calibration =
          CalibrationOptions{.lanes = options_.io_threads,
                             .period = Duration(options_.bandwidth_calibration == "periodic" ? kPeriod : Duration(0))};
    tiers->tier = std::make_unique<ExpertTier>(files_->config, *files_->store, *backend_, clock_, tier);
  }
  tiers_ = std::move(tiers);
}

// auto: what was trained on this model and lies beside it, else the rule without training.
PredictorChoice Engine::choose_predictor() const {
  if (options_.predictor != "auto") return ef::choose_predictor(options_.predictor, *files_);
  const std::filesystem::path file = predictor_beside(files_->checkpoint.path);
  if (!std::filesystem::exists(file)) return {"gate-ahead", nullptr};
  try {
    return ef::choose_predictor(file.string(), *files_);
  } catch (const ModelError& error) {
    log_.warn("predictor ignored: {}", error.what());
    return {"gate-ahead", nullptr};
  }
}

// Where every expert finds room there is nothing to look ahead for. What was asked for is checked all the same.
void Engine::wire_foresight() {
  PredictorChoice choice;
  if (options_.predictor != "auto") choice = choose_predictor();
  if (!tiers_->tier) return;
  ExpertCache& cache = tiers_->tier->cache();
  ForesightOptions options = foresight_options(options_, config(), cache.geometry(), cache.pool_bytes());
  const bool room = cache.pool_bytes() >= cache.geometry().total_footprint();
  if (options_.async_prefetch == "on" && (room || options.governor.mode == PrefetchMode::kOff))
    log_.info("--async-prefetch on: nothing is read ahead: {}",
              room ? "every expert finds room" : "--prediction-horizon is 0");
  if (room) return;
  if (cache.wants_scores()) tiers_->scores = std::make_unique<ScoreWatch>(config(), cache);
  if (options.governor.mode == PrefetchMode::kOff) return;
  tiers_->tier->calibrate();
  if (const LinkCalibrator* calibrator = tiers_->tier->calibrator()) {
    options.controller.bandwidth = calibrator->latest().bytes_per_second;
    options.controller.layer_seconds = expected_layer_seconds();
  }
  options.governor.most_rows = std::min<int64_t>(options.governor.most_rows, state_->max_rows);
  if (options_.predictor == "auto") choice = choose_predictor();
  tiers_->trained = std::move(choice.trained);
  const int horizon = options.horizon > 0 ? options.horizon : options.controller.most;
  tiers_->predictor = make_predictor(choice.name, {*model_, *backend_, options.governor.most_rows,
                                                   layers_holding(horizon, config()), tiers_->trained.get()});
  tiers_->foresight = std::make_unique<Foresight>(config(), *state_, *tiers_->predictor, *stream_, cache,
                                                  tiers_->tier->pipeline(), tiers_->tier->experts(), clock_, options);
  tiers_->tier->experts().set_ahead(tiers_->foresight.get());
}

// Of one token, before any has been computed: what a layer reads of memory at the speed that memory is read with.
double Engine::expected_layer_seconds() {
  constexpr size_t kBytes = 16 << 20, kNumbers = kBytes / sizeof(uint64_t), kPiece = kNumbers / 64;
  std::vector<uint64_t> memory(kNumbers, 1);
  std::atomic<uint64_t> sum{0};
  const Duration begin = clock_.now();
  pool_->parallel_for(int64_t(kNumbers / kPiece), 1, [&](int64_t first, int64_t last, int) {
    sum +=
        std::accumulate(memory.begin() + first * int64_t(kPiece), memory.begin() + last * int64_t(kPiece), uint64_t(0));
  });
  const double speed = double(kBytes) / std::max(1e-6, seconds(clock_.now() - begin));
  const Config& c = config();
  double experts = 0;
  for (size_t l = 0; l < c.layers.size(); ++l)
    if (c.layers[l].sparse) experts += double(files_->store->slot_bytes(LayerId(l))) * c.router.top_k;
  return sum == kNumbers ? (double(plan_.resident_bytes) + experts) / double(c.layers.size()) / speed : 0;
}

// Every so often, if asked for. Between steps.
void Engine::calibrate() {
  if (tiers_->foresight && tiers_->tier->calibrate())
    tiers_->foresight->calibrated(tiers_->tier->calibrator()->latest().bytes_per_second);
}

void Engine::set_prefetch(const std::string& async_prefetch, const std::string& predictor, const std::string& horizon) {
  options_.async_prefetch = async_prefetch, options_.predictor = predictor, options_.prediction_horizon = horizon;
  if (tiers_->tier) tiers_->tier->experts().set_ahead(nullptr);
  tiers_->foresight.reset();
  tiers_->scores.reset();
  tiers_->predictor.reset();
  tiers_->trained.reset();
  wire_foresight();
}

void Engine::log_io(const IoState& state) const {
  for (const IoState::Note& note : state.notes) note.warning ? log_.warn("{}", note.text) : log_.info("{}", note.text);
  log_.info("experts are read by {}", state.text());
}

std::span<const float> Engine::run(const Batch& batch, int top) {
  EF_CHECK(tiers_ != nullptr, DeviceError,
           "the experts' memory was given up and could not be had again; load the model anew");
  calibrate();
  Observers observers({tiers_->foresight.get(), tiers_->scores.get(), observer_, recorder_});
  StepContext context{*model_,           *rope_, *backend_, *stream_,
                      tiers_->experts(), *kv_,   *state_,   observers.empty() ? nullptr : &observers};
  regions_->set_time(++steps_);
  const Duration begin = clock_.now();
  const StepEnd end{tiers_->foresight.get()};
  const std::span<const float> logits = forward(context, batch, top);
  rows_ += uint64_t(batch.rows());
  if (batch.rows() <= GovernorOptions{}.most_rows) note_latency(seconds(clock_.now() - begin));
  return logits;
}

void Engine::note_latency(double seconds) {
  constexpr size_t kKept = 1024;
  if (latencies_.size() < kKept) latencies_.resize(latencies_.size() + 1);
  latencies_[next_latency_] = seconds;
  next_latency_ = (next_latency_ + 1) % kKept;
}

std::span<const float> Engine::step(const Batch& batch) { return run(batch, 0); }

int Engine::most_top() const { return std::min({backend_->most_top(), State::kMostTop, config().vocab}); }

TopLogits Engine::step_top(const Batch& batch, int top) {
  EF_DCHECK(top >= 1 && top <= most_top());
  (void)run(batch, top);
  const size_t count = size_t(batch.logit_rows()) * size_t(top);
  static_assert(sizeof(TokenId) == sizeof(float));
  const auto* ids = reinterpret_cast<const TokenId*>(state_->host_top);
  return {top, {ids, count}, {state_->host_top + count, count}};
}

void Engine::set_expert_memory(const std::string& budget) {
  const std::string before = options_.expert_memory;
  stream_->forget_recordings();
  tiers_.reset();  // before the new one: never both
  saved_use_.clear(), rows_ = 0;
  const auto build = [this](const std::string& text) {
    options_.expert_memory = text;
    plan_experts_anew(plan_, *files_, options_);
    build_experts();
  };
  try {
    build(budget);
  } catch (...) {
    build(before);
    wire_foresight();
    throw;
  }
  wire_foresight();
}

ExpertStats Engine::expert_stats() const {
  ExpertStats stats;
  if (tiers_ && tiers_->all_resident)
    if (const DriftStats* drift = tiers_->all_resident->drift()) stats.drift = *drift;
  if (!tiers_ || !tiers_->tier) return stats;
  const CacheStats cache = tiers_->tier->cache().stats();
  const CachedExpertsStats experts = tiers_->tier->experts().stats();
  stats.hits = cache.hits;
  stats.misses = cache.misses + cache.late_hits;
  stats.late_hits = cache.late_hits;
  const CopyStats copies = tiers_->tier->pipeline().stats();
  stats.bytes_read = copies.bytes_read;
  stats.ahead = cache.reserved;
  stats.ahead_used = cache.reserved_used;
  stats.ahead_late = cache.reserved_late;
  stats.ahead_wasted = cache.reserved_wasted;
  stats.ahead_cancelled = copies.cancelled;
  stats.ahead_bytes = copies.bytes_ahead;
  stats.ahead_used_bytes = cache.reserved_ready_bytes;
  stats.wasted_bytes = cache.reserved_evicted_bytes + copies.bytes_cancelled;
  uint64_t experts_in_all = 0;
  for (const LayerConfig& layer : config().layers)
    experts_in_all += layer.sparse ? uint64_t(config().router.experts) : 0;
  stats.all_resident =
      cache.residents >= experts_in_all || cache.pool_bytes >= tiers_->tier->cache().geometry().total_footprint();
  stats.cache_utilization = double(cache.bytes_in_use) / double(cache.pool_bytes);
  if (tiers_->foresight) stats.foresight = tiers_->foresight->stats();
  stats.layers = cache.layers;
  if (const LinkCalibrator* calibrator = tiers_->tier->calibrator(); calibrator && calibrator->latest().runs > 0)
    stats.calibration = calibrator->latest();
  stats.eager_evictions = cache.eager_evictions;
  stats.grouped_events = experts.grouped;
  stats.read_seconds = copies.busy_seconds;
  stats.bytes_per_second = copies.bytes_per_second;
  stats.read_retries = copies.retries;
  stats.checksum_rereads = tiers_->tier->reader().rereads();
  stats.io = tiers_->tier->reader().state().text();
  stats.evictions = cache.evictions;
  stats.waves = experts.waves;
  stats.stall_seconds = experts.stall_seconds;
  return stats;
}

bool Engine::expert_is_near(ExpertKey key) const {
  return !tiers_ || !tiers_->tier || tiers_->tier->cache().page_of(key) >= 0;
}

std::vector<uint8_t> Engine::expert_states(LayerId layer) const {
  const bool sparse = files_->config.layers[size_t(layer)].sparse;
  std::vector<uint8_t> states(sparse ? size_t(files_->config.router.experts) : 0, uint8_t(ExpertState::kResident));
  if (!tiers_ || !tiers_->tier) return states;
  for (size_t e = 0; e < states.size(); ++e)
    states[e] = uint8_t(tiers_->tier->cache().look({layer, ExpertId(e)}).state);
  return states;
}

std::optional<ExpertSlots> Engine::expert_slots() const {
  if (!tiers_ || !tiers_->tier) return std::nullopt;
  const CacheStats cache = tiers_->tier->cache().stats();
  return ExpertSlots{cache.residents, cache.in_flight, cache.pinned, cache.pool_bytes, cache.bytes_in_use};
}

ExpertMetrics Engine::expert_metrics() const { return metrics_of(expert_stats(), latencies_); }

ExpertMetrics metrics_of(const ExpertStats& stats, std::span<const double> latencies) {
  ExpertMetrics m;
  m.all_resident = stats.all_resident;
  m.reads_ahead = stats.foresight && stats.foresight->governor.mode != PrefetchMode::kOff;
  if (stats.foresight) m.distance = stats.foresight->horizon;
  m.hit_rate = stats.hit_rate();
  m.hits = stats.hits, m.misses = stats.misses, m.evictions = stats.evictions;
  const uint64_t asked = stats.hits + stats.misses;
  m.expert_swap_rate = asked > 0 ? double(stats.evictions) / double(asked) : 0;
  if (!stats.io.empty()) m.cache_utilization = stats.cache_utilization;
  m.p50_latency = percentile(latencies, 0.50);
  m.p95_latency = percentile(latencies, 0.95);
  m.p99_latency = percentile(latencies, 0.99);
  m.prefetch_bytes = stats.ahead_bytes, m.wasted_bytes = stats.wasted_bytes;
  m.demand_bytes = stats.bytes_read - stats.ahead_bytes;
  m.stall_seconds = stats.stall_seconds;
  if (stats.foresight) {
    m.prediction = stats.foresight->prediction;
    m.by_distance = stats.foresight->by_distance;
    if (m.prediction.events > 0) m.prediction_hit_rate = m.prediction.recall_at_m();
  }
  return m;
}

double Engine::stall_seconds() const {
  return tiers_ && tiers_->tier ? tiers_->tier->experts().stats().stall_seconds : 0.;
}

std::array<RegionReport, kRegions> Engine::memory_regions() const {
  std::array<RegionReport, kRegions> regions;
  for (size_t r = 0; r < regions.size(); ++r) regions[r] = regions_->report(Region(r));
  return regions;
}

MemoryReport Engine::memory_report() const {
  MemoryReport report;
  report.regions = memory_regions();
  report.pieces = regions_->pieces();
  report.steps = steps_;
  if (tiers_ && tiers_->tier) report.slots = tiers_->tier->cache().stats();
  return report;
}

}  // namespace ef
