#include "expertflow/engine/engine.h"

#include <algorithm>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"

namespace ef {

struct Engine::Tiers {
  std::unique_ptr<Experts> experts;
};

namespace {

KvOptions kv_options(const Config& config, const EngineOptions& o) {
  KvOptions kv;
  kv.type = o.kv_type;
  kv.max_tokens = o.ctx_size > 0 ? o.ctx_size : config.context_length;
  kv.max_sequences = o.parallel;
  kv.max_step_tokens = o.ubatch;
  return kv;
}

void check(const EngineOptions& o) {
  EF_CHECK(o.parallel >= 1, ConfigError, "parallel: expected at least 1, found {}", o.parallel);
  EF_CHECK(o.ubatch >= 1, ConfigError, "ubatch: expected at least 1, found {}", o.ubatch);
  EF_CHECK(o.ctx_size >= 0, ConfigError, "ctx-size: expected 0 or more, found {}", o.ctx_size);
  EF_CHECK(o.io_threads >= 1, ConfigError, "io-threads: expected at least 1, found {}", o.io_threads);
}

int64_t logit_rows(const EngineOptions& o) { return o.max_logit_rows > 0 ? o.max_logit_rows : o.parallel; }

}  // namespace

Engine::Engine(std::unique_ptr<ModelFiles> files, const EngineOptions& options, const Log& log,
               const std::function<void(uint64_t, uint64_t)>& progress)
    : options_(options), log_(log), files_(std::move(files)) {
  check(options_);
  const Config& c = files_->config;
  const KvOptions kv = kv_options(c, options_);
  plan_.resident_bytes = files_->binding.resident_bytes;
  plan_.kv_bytes = KvCache::bytes_for(c, kv);
  plan_.scratch_bytes = State::bytes_for(c, options_.ubatch, logit_rows(options_));
  plan_.expert_total = files_->store->total_bytes();
  EF_CHECK(options_.max_kv_bytes == 0 || plan_.kv_bytes <= options_.max_kv_bytes, ConfigError,
           "max-kv-cache-memory: a KV cache of {} tokens takes {} bytes, allowed are {}", kv.max_tokens, plan_.kv_bytes,
           options_.max_kv_bytes);

  pool_ = std::make_unique<ThreadPool>(options_.threads);
  backend_ = make_cpu_backend(*pool_, parse_isa(options_.isa));
  stream_ = backend_->make_stream();
  build_experts();
  model_ = std::make_unique<Model>();
  model_->config = c;
  model_->weights = load_weights(c, files_->binding, files_->checkpoint.directory, *backend_, progress);
  rope_ = std::make_unique<RopeTable>(c.rope, c.context_length);
  kv_ = std::make_unique<KvCache>(c, *backend_, kv);
  state_ = std::make_unique<State>(c, *backend_, options_.ubatch, logit_rows(options_));
}

Engine::~Engine() = default;

void Engine::build_experts() {
  tiers_ = std::make_unique<Tiers>();
  tiers_->experts = make_all_resident(files_->config, *files_->store, *backend_);
}

std::span<const float> Engine::step(const Batch& batch) {
  StepContext context{*model_, *rope_, *backend_, *stream_, *tiers_->experts, *kv_, *state_, observer_};
  return forward(context, batch);
}

void Engine::set_expert_memory(const std::string& budget) {
  options_.expert_memory = budget;
  tiers_.reset();
  build_experts();
}

ExpertStats Engine::expert_stats() const { return {}; }

}  // namespace ef
