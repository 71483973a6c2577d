#include "expertflow/engine/engine.h"

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/base/topology.h"
#include "expertflow/engine/cached_experts.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/predictor_forecast.h"
#include "expertflow/engine/tune.h"

namespace ef {

struct Engine::Tiers {
  std::unique_ptr<Experts> all_resident;
  std::unique_ptr<PredictorForecast> ahead;  // used by the tier until that is gone
  std::unique_ptr<ExpertTier> tier;
  Experts& experts() { return all_resident ? *all_resident : tier->experts(); }
};

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
  EF_CHECK(o.read_ahead >= 0 && o.read_ahead <= kMaxLayers, ConfigError, "read-ahead: expected 0 to {}, found {}",
           kMaxLayers, o.read_ahead);
  EF_CHECK(o.drift_check >= 0, ConfigError, "drift-check: expected at least 0, found {}", o.drift_check);
  EF_CHECK(o.io_depth >= 1 && o.io_depth <= kMaxThreads, ConfigError, "io-depth: expected 1 to {}, found {}",
           kMaxThreads, o.io_depth);
  EF_CHECK(o.threads >= 0 && o.threads <= kMaxThreads, ConfigError, "threads: expected 0 to {}, found {}", kMaxThreads,
           o.threads);
  EF_CHECK(o.autotune == "on" || o.autotune == "off", ConfigError, "autotune: expected on or off, found \"{}\"",
           o.autotune);
  parse_io(o.io);
  parse_direct_io(o.direct_io);
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
  wire_read_ahead();
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
    tiers->tier = std::make_unique<ExpertTier>(files_->config, *files_->store, *backend_, clock_, tier);
  }
  tiers_ = std::move(tiers);
}

// Where every expert finds room there is nothing to run ahead of.
void Engine::wire_read_ahead() {
  if (!tiers_->tier || options_.read_ahead == 0) return;
  const ExpertCache& cache = tiers_->tier->cache();
  if (cache.pool_bytes() >= cache.geometry().total_footprint()) return;
  const int64_t rows = std::min<int64_t>(CachedExpertsOptions{}.forecast_rows, state_->max_rows);
  auto predictor = make_predictor("gate-ahead", {*model_, *backend_, rows, options_.read_ahead});
  // Of the less likely a third is wrong (the demo widened): they cost the disk more than they save.
  CandidateRules rules;
  rules.all = {.mass = 1, .least_probability = 0.5f, .most = int(rows) * ((config().router.top_k + 1) / 2)};
  tiers_->ahead =
      std::make_unique<PredictorForecast>(std::move(predictor), *model_, *state_, options_.read_ahead, rows, rules);
  tiers_->tier->experts().set_forecast(tiers_->ahead.get());
}

void Engine::log_io(const IoState& state) const {
  for (const IoState::Note& note : state.notes) note.warning ? log_.warn("{}", note.text) : log_.info("{}", note.text);
  log_.info("experts are read by {}", state.text());
}

std::span<const float> Engine::run(const Batch& batch, int top) {
  EF_CHECK(tiers_ != nullptr, DeviceError,
           "the experts' memory was given up and could not be had again; load the model anew");
  StepContext context{*model_, *rope_, *backend_, *stream_, tiers_->experts(), *kv_, *state_, observer_};
  regions_->set_time(++steps_);
  return forward(context, batch, top);
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
  const auto build = [this](const std::string& text) {
    options_.expert_memory = text;
    plan_experts_anew(plan_, *files_, options_);
    build_experts();
  };
  try {
    build(budget);
  } catch (...) {
    build(before);
    wire_read_ahead();
    throw;
  }
  wire_read_ahead();
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
  const CopyStats copies = tiers_->tier->pipeline().stats();
  stats.bytes_read = copies.bytes_read;
  stats.ahead = cache.reserved;
  stats.ahead_used = cache.reserved_used;
  stats.ahead_late = cache.reserved_late;
  stats.ahead_wasted = cache.reserved_wasted;
  stats.ahead_cancelled = copies.cancelled;
  stats.read_seconds = copies.busy_seconds;
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

MemoryReport Engine::memory_report() const {
  MemoryReport report;
  for (size_t r = 0; r < report.regions.size(); ++r) report.regions[r] = regions_->report(Region(r));
  report.pieces = regions_->pieces();
  report.steps = steps_;
  if (tiers_ && tiers_->tier) report.slots = tiers_->tier->cache().stats();
  return report;
}

}  // namespace ef
