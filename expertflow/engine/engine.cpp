#include "expertflow/engine/engine.h"

#include <algorithm>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/base/topology.h"
#include "expertflow/engine/cached_experts.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/gate_ahead.h"
#include "expertflow/engine/memory_budget.h"
#include "expertflow/engine/tune.h"

namespace ef {

struct Engine::Tiers {
  std::unique_ptr<Experts> all_resident;
  std::unique_ptr<GateAhead> ahead;  // used by the tier until that is gone
  std::unique_ptr<ExpertTier> tier;
  Experts& experts() { return all_resident ? *all_resident : tier->experts(); }
};

namespace {

KvOptions kv_options(const Config& config, const EngineOptions& o) {
  KvOptions kv;
  kv.type = parse_kv_type(o.cache_type_k);
  kv.max_tokens = context_tokens(o.ctx_size, config);
  kv.max_sequences = o.parallel;
  kv.max_step_tokens = o.ubatch;
  return kv;
}

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

int64_t logit_rows(const EngineOptions& o) { return o.max_logit_rows > 0 ? o.max_logit_rows : o.parallel; }

// A cap on the KV cache: bytes, or a share of the memory that is left on this machine.
void check_kv_cap(const EngineOptions& o, int64_t tokens, uint64_t kv_bytes, const MemoryInfo& memory) {
  if (o.max_kv_cache_memory.empty()) return;
  BudgetRequest cap;
  try {
    cap = parse_budget(o.max_kv_cache_memory);
  } catch (const ConfigError&) {
    fail<ConfigError>(
        "max-kv-cache-memory: expected bytes (2GiB) or a share of the memory that is left (above 0 %, at most 100 %), "
        "found \"{}\"",
        o.max_kv_cache_memory);
  }
  uint64_t allowed = 0;
  if (cap.kind == BudgetRequest::Kind::kBytes)
    allowed = cap.bytes;
  else if (cap.kind == BudgetRequest::Kind::kShare)
    allowed = memory.left() ? uint64_t(double(*memory.left()) * cap.share) : UINT64_MAX;
  else
    fail<ConfigError>("max-kv-cache-memory: expected bytes or a share, found \"{}\"", o.max_kv_cache_memory);
  EF_CHECK(
      kv_bytes <= allowed, ConfigError,
      "max-kv-cache-memory: a KV cache of {} tokens takes {}, {} allows {} ({}); ask for less context with --ctx-size",
      tokens, format_bytes(kv_bytes), o.max_kv_cache_memory, format_bytes(allowed), memory.text());
}

}  // namespace

int64_t context_tokens(int64_t ctx_size, const Config& config) {
  constexpr int64_t kDefault = 4096;
  if (ctx_size > 0) return ctx_size;
  return ctx_size == 0 ? config.context_length : std::min<int64_t>(config.context_length, kDefault);
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
    : options_(options), log_(log), files_(std::move(files)) {
  check(options_);
  options_.ubatch = std::min(options_.ubatch, options_.batch_size);
  const Config& c = files_->config;
  const KvOptions kv = kv_options(c, options_);
  const DeviceChoice device = parse_device(options_.device);
  plan_ = plan_memory(*files_, options_);
  check_kv_cap(options_, kv.max_tokens, plan_.kv_bytes, device_memory_info(device));
  if (kv.max_tokens > c.context_length)
    log_.warn("a context of {} tokens is longer than the {} that the model was made for", kv.max_tokens,
              c.context_length);

  pool_ = make_pool(options_);
  backend_ = make_backend(device, *pool_, options_);
  stream_ = backend_->make_stream();
  files_->store->choose_layouts([&](Format f) { return backend_->weight_layout(Op::kExperts, f); });
  // Experts first: a budget that cannot work is refused before anything is read.
  build_experts(false);
  if (!options_.all_resident) files_->store->check_scales();  // a bad one fails here and not when it is first wanted
  model_ = std::make_unique<Model>();
  model_->config = c;
  model_->weights = load_weights(c, files_->binding, files_->checkpoint.directory, *backend_, progress);
  rope_ = std::make_unique<RopeTable>(c.rope, c.context_length);
  kv_ = std::make_unique<KvCache>(c, *backend_, kv);
  state_ = std::make_unique<State>(c, *backend_, options_.ubatch, logit_rows(options_));
  if (device.cuda && options_.autotune == "on")
    tune_backend(*backend_, *stream_, *model_, tiers_->experts(), tuning_file(), log_);
  wire_read_ahead();
}

Engine::~Engine() = default;

BudgetFacts budget_facts_of(const ModelFiles& files, const MemoryPlan& plan) {
  BudgetFacts facts = budget_facts(geometry_of(*files.store, int(files.config.layers.size())));
  facts.weights_bytes = plan.resident_bytes;
  facts.kv_bytes = plan.kv_bytes;
  facts.scratch_bytes = plan.scratch_bytes;
  return facts;
}

MemoryPlan plan_memory(const ModelFiles& files, const EngineOptions& o) {
  const Config& c = files.config;
  MemoryPlan plan;
  plan.resident_bytes = files.binding.resident_bytes;
  plan.kv_bytes = KvCache::bytes_for(c, kv_options(c, o));
  const int threads = o.threads > 0 ? o.threads : default_threads();
  const int64_t context = context_tokens(o.ctx_size, c);
  plan.scratch_bytes = State::bytes_for(c, o.ubatch, logit_rows(o));
  if (parse_device(o.device).cuda)
    plan.scratch_bytes += cuda_scratch_bytes() + all_resident_scratch_bytes(c, o.ubatch);
  else
    plan.scratch_bytes += CachedExpertsOptions{}.scratch_bytes + DiskReader::staging_bytes(*files.store, o.io_threads) +
                          cpu_scratch_bytes(threads, c.heads, c.latent ? 1 : c.kv_heads, context);
  plan.expert_total = files.store->total_bytes();
  return plan;
}

Budget Engine::budget_of(bool rest_is_taken) const {
  BudgetFacts facts = budget_facts_of(*files_, plan_);
  if (rest_is_taken) facts.weights_bytes = facts.kv_bytes = facts.scratch_bytes = 0;
  const DeviceChoice device = parse_device(options_.device);
  const Budget budget = resolve_budget(parse_budget(options_.expert_memory), facts, device_memory_info(device));
  EF_CHECK(!device.cuda || budget.bytes >= facts.expert_bytes, ConfigError,
           "device: {} keeps every expert in its memory so far: all take {}, but --expert-memory {} gives {} ({}); use "
           "--device cpu",
           options_.device, format_bytes(facts.expert_bytes), options_.expert_memory, format_bytes(budget.bytes),
           budget.explanation);
  return budget;
}

void Engine::build_experts(bool rest_is_taken) {
  auto tiers = std::make_unique<Tiers>();
  if (options_.all_resident || !backend_->memory_is_host()) {
    plan_.explanation = options_.all_resident ? "every expert resident" : budget_of(rest_is_taken).explanation;
    plan_.expert_budget = plan_.expert_total;
    DriftOptions drift;
    drift.every = options_.batch_invariant ? 0 : options_.drift_check;
    drift.rounds_to_8_bits = parse_activations(options_.activations) == Activations::kQ8;
    tiers->all_resident = make_all_resident(files_->config, *files_->store, *backend_, drift);
  } else {
    const Budget budget = budget_of(rest_is_taken);
    plan_.expert_budget = budget.bytes;
    plan_.explanation = budget.explanation;
    ExpertTierOptions tier;
    tier.budget_bytes = budget.bytes;
    tier.policy = options_.eviction_policy;
    tier.pipeline.workers = options_.io_threads;
    tier.disk.io = parse_io(options_.io);
    tier.disk.direct = parse_direct_io(options_.direct_io);
    tier.disk.depth = options_.io_depth;
    tiers->tier = std::make_unique<ExpertTier>(files_->config, *files_->store, *backend_, clock_, tier);
    if (!rest_is_taken) log_io(tiers->tier->reader().state());  // once: another budget reads in the same way
  }
  tiers_ = std::move(tiers);
}

// Where every expert finds room there is nothing to run ahead of.
void Engine::wire_read_ahead() {
  if (!tiers_->tier || options_.read_ahead == 0) return;
  const ExpertCache& cache = tiers_->tier->cache();
  if (cache.pool_bytes() >= cache.geometry().total_footprint()) return;
  const int64_t rows = std::min<int64_t>(CachedExpertsOptions{}.forecast_rows, state_->max_rows);
  tiers_->ahead = std::make_unique<GateAhead>(*model_, *state_, *backend_, options_.read_ahead, rows);
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
  try {
    options_.expert_memory = budget;
    build_experts(true);
  } catch (...) {
    options_.expert_memory = before;
    build_experts(true);
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

}  // namespace ef
