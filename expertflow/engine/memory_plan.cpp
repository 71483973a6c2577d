#include "expertflow/engine/memory_plan.h"

#include <algorithm>
#include <cmath>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/backend/cuda_backend.h"
#include "expertflow/backend/memory_regions.h"
#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/base/topology.h"
#include "expertflow/engine/cached_experts.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/tune.h"
#include "expertflow/model/state.h"

namespace ef {
namespace {

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
  EF_CHECK(kv_bytes <= allowed, ConfigError,
           "max-kv-cache-memory: a KV cache of {} tokens{} takes {}, {} allows {} ({}); ask for less context "
           "with --ctx-size{}",
           tokens, o.parallel > 1 ? fmt::format(" for {} sequences", o.parallel) : "", format_bytes(kv_bytes),
           o.max_kv_cache_memory, format_bytes(allowed), memory.text(),
           o.parallel > 1 ? ", or for fewer sequences" : "");
}

bool measures(const EngineOptions& o) { return o.autotune == "on" && !o.batch_invariant; }

StepShape largest_step(const Config& c, const EngineOptions& o) {
  StepShape s;
  s.rows = measures(o) ? std::max<int64_t>(o.ubatch, kTuningRows) : o.ubatch;
  s.hidden = c.hidden, s.ffn = c.expert_ffn;
  s.widest = std::max({c.hidden, c.q_width(), c.dense_ffn, c.shared_ffn});
  s.experts = c.router.experts, s.top_k = c.router.top_k;
  s.heads = c.heads, s.kv_heads = c.kv_heads;
  s.k_dim = s.v_dim = c.head_dim;
  s.kv = parse_kv_type(o.cache_type_k);
  // Recorded steps round their reach up, by a quarter or to 256.
  s.context = context_tokens(o.ctx_size, c) * 5 / 4 + 256;
  if (c.latent) {
    const LatentConfig& l = *c.latent;
    s.latent = true;
    s.kv_heads = 1, s.k_dim = l.kv_lora + l.rope, s.v_dim = l.kv_lora;
    s.widest = std::max<int64_t>({s.widest, l.q_lora, l.kv_lora, int64_t(c.heads) * l.v_dim});
  }
  return s;
}

uint64_t sparse_layers(const ModelFiles& files) { return files.store->layers().size(); }

// Every expert stays: on devices so far, and where the oracle of verify runs.
bool experts_stay(const EngineOptions& o) { return o.all_resident || parse_device(o.device).cuda; }

CacheGeometry geometry_of(const ModelFiles& files) {
  return geometry_of(*files.store, int(files.config.layers.size()));
}

// The experts' part for a budget that has been settled.
void set_experts_part(MemoryPlan& plan, const ModelFiles& files, const EngineOptions& o) {
  std::erase_if(plan.parts, [](const PlanPart& p) { return p.name == "experts" || p.name == "expert slots"; });
  if (experts_stay(o)) {
    plan.parts.push_back({Region::kStatic, "experts", plan.expert_total, true, sparse_layers(files)});
  } else {
    const CacheGeometry geometry = geometry_of(files);
    plan.parts.push_back(
        {Region::kElastic, "expert slots", geometry.pool_bytes(plan.expert_budget) + geometry.page_bytes});
  }
}

// On a device: all of them, whatever the words for it.
void all_on_device(MemoryPlan& plan, const BudgetFacts& facts, const EngineOptions& o) {
  const BudgetRequest request = parse_budget(o.expert_memory);
  if (request.kind != BudgetRequest::Kind::kAuto) {
    const Budget budget = resolve_budget(request, facts, {});
    EF_CHECK(budget.bytes >= facts.expert_bytes, ConfigError,
             "device: {} keeps every expert in its memory so far: all take {}, but --expert-memory {} gives {}; use "
             "--device cpu",
             o.device, format_bytes(facts.expert_bytes), o.expert_memory, format_bytes(budget.bytes));
  }
  plan.expert_budget = plan.expert_total;
  plan.explanation = fmt::format("experts: all, {}", format_bytes(plan.expert_total));
}

void settle_experts(MemoryPlan& plan, const BudgetFacts& facts, const EngineOptions& o, const MemoryInfo& memory) {
  if (parse_device(o.device).cuda) {
    all_on_device(plan, facts, o);
  } else if (o.all_resident) {
    plan.explanation = "every expert resident";
    plan.expert_budget = plan.expert_total;
  } else {
    const Budget budget = resolve_budget(parse_budget(o.expert_memory), facts, memory);
    plan.expert_budget = budget.bytes;
    plan.explanation = budget.explanation;
  }
}

// Before anything is read: memory of a device cannot be had twice.
void check_fits(const MemoryPlan& plan, const EngineOptions& o) {
  const uint64_t needed = plan.taken(), left = plan.memory.left().value_or(UINT64_MAX);
  if (needed <= left) return;
  std::string regions;
  for (const Region region : {Region::kStatic, Region::kDynamic, Region::kElastic})
    regions +=
        fmt::format("{}{} {}{}", regions.empty() ? "" : ", ", region_name(region), format_bytes(plan.taken(region)),
                    plan.text(region).empty() ? "" : " (" + plan.text(region) + ")");
  fail<ConfigError>(
      "device memory: the plan for {} needs {}, {} more than the {} that are left ({}): {}; ask for less with "
      "--ctx-size "
      "(KV cache) or --ubatch-size (activations, scratch){}, or use --device cpu",
      o.device, format_bytes(needed), format_bytes(needed - left), format_bytes(left), plan.memory.text(), regions,
      o.device_memory == "auto" ? "" : ", allow more with --device-memory");
}

}  // namespace

int64_t context_tokens(int64_t ctx_size, const Config& config) {
  constexpr int64_t kDefault = 4096;
  if (ctx_size > 0) return ctx_size;
  return ctx_size == 0 ? config.context_length : std::min<int64_t>(config.context_length, kDefault);
}

KvOptions kv_options(const Config& config, const EngineOptions& o) {
  KvOptions kv;
  kv.type = parse_kv_type(o.cache_type_k);
  kv.max_tokens = context_tokens(o.ctx_size, config);
  kv.max_sequences = o.parallel;
  kv.max_step_tokens = o.ubatch;
  return kv;
}

int64_t logit_rows(const EngineOptions& o) { return o.max_logit_rows > 0 ? o.max_logit_rows : o.parallel; }

uint64_t MemoryPlan::expected(Region region) const {
  uint64_t bytes = 0;
  for (const PlanPart& p : parts)
    if (p.region == region) bytes += p.bytes;
  return bytes;
}

uint64_t MemoryPlan::taken(Region region) const {
  if (!reserved) return expected(region);
  uint64_t bytes = 0;
  for (const PlanPart& p : parts)
    if (p.region == region) bytes += p.reserved() + p.pieces * (kRegionAlign - 1);
  return round_up(bytes, kRegionAlign);
}

uint64_t MemoryPlan::taken() const {
  return taken(Region::kStatic) + taken(Region::kDynamic) + taken(Region::kElastic);
}

std::string MemoryPlan::text(Region region) const {
  std::string out;
  for (const PlanPart& p : parts)
    if (p.region == region && p.bytes > 0)
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", p.name, format_bytes(p.bytes));
  return out;
}

uint64_t PlanPart::reserved() const { return exact ? bytes : uint64_t(std::ceil(double(bytes) * kHeadroom)); }

MemoryPlan plan_memory(const ModelFiles& files, const EngineOptions& o) {
  const Config& c = files.config;
  const KvOptions kv = kv_options(c, o);
  const int64_t rows = o.ubatch;
  MemoryPlan plan;
  plan.resident_bytes = files.binding.resident_bytes;
  plan.kv_bytes = KvCache::bytes_for(c, kv);
  plan.expert_total = files.store->total_bytes();
  plan.reserved = parse_device(o.device).cuda;
  plan.parts = {{Region::kStatic, "weights", plan.resident_bytes, true, c.layers.size() + 1},
                {Region::kDynamic, "KV cache", plan.kv_bytes, true, 2 * c.layers.size()}};
  if (plan.reserved && !o.batch_invariant)
    plan.parts.push_back({Region::kStatic, "expert tables", sparse_layers(files) * cuda_table_bytes(c.router.experts),
                          true, sparse_layers(files)});
  const auto dynamic = [&plan](std::string_view name, uint64_t bytes, bool exact, uint64_t pieces = 1) {
    plan.parts.push_back({Region::kDynamic, name, bytes, exact, pieces});
    plan.scratch_bytes += bytes;
  };
  dynamic("activations", State::bytes_for(c, rows, logit_rows(o)), true);
  if (plan.reserved) {
    constexpr uint64_t kStreams = kMostLoaders + 2;  // the engine's, and those of loading
    dynamic("block tables", KvCache::table_bytes_for(c, kv), true, c.layers.size());
    dynamic("expert outputs", all_resident_scratch_bytes(c, rows), true);
    dynamic("streams", kStreams * cuda_stream_bytes(), false, 2 * kStreams);
    if (measures(o)) dynamic("measuring", tuning_bytes(c, files.binding), false, 4);
    dynamic("scratch", cuda_scratch_bytes(largest_step(c, o), cuda_options(o)), false);
  } else {
    const int threads = o.threads > 0 ? o.threads : default_threads();
    dynamic("expert outputs", CachedExpertsOptions{}.scratch_bytes, false);
    dynamic("staging of reads", DiskReader::staging_bytes(*files.store, o.io_threads), false);
    dynamic("scratch", cpu_scratch_bytes(threads, c.heads, c.latent ? 1 : c.kv_heads, kv.max_tokens), false);
  }
  return plan;
}

BudgetFacts budget_facts_of(const ModelFiles& files, const MemoryPlan& plan) {
  BudgetFacts facts = budget_facts(geometry_of(files));
  facts.weights_bytes = plan.resident_bytes;
  facts.kv_bytes = plan.kv_bytes;
  facts.scratch_bytes = plan.scratch_bytes;
  return facts;
}

MemoryPlan plan_engine(const ModelFiles& files, const EngineOptions& o) {
  return plan_engine(files, o, device_memory_info(parse_device(o.device), o));
}

namespace {

// Q4_K_M and its like mix some matrices of six bits in: 4.9 bits a weight; five-bit files take 5.5 and more.
void check_four_bits(const ModelFiles& files) {
  constexpr double kMostBits = 5.25;
  uint64_t experts = 0;
  for (const LayerExperts& layer : files.store->layers()) experts += layer.count();
  const double weights = 3.0 * double(files.config.hidden) * double(files.config.expert_ffn) * double(experts);
  const double bits = 8.0 * double(files.store->total_bytes()) / weights;
  EF_CHECK(bits <= kMostBits, ConfigError,
           "load-in-4bit: the experts of {} take {:.1f} bits a weight; write a file with 4-bit ones first: expertflow "
           "quantize MODEL OUT.gguf --type Q4_K_M",
           files.checkpoint.path.string(), bits);
}

}  // namespace

MemoryPlan plan_engine(const ModelFiles& files, const EngineOptions& o, const MemoryInfo& memory) {
  if (o.load_in_4bit) check_four_bits(files);
  MemoryPlan plan = plan_memory(files, o);
  plan.memory = memory;
  check_kv_cap(o, context_tokens(o.ctx_size, files.config), plan.kv_bytes, plan.memory);
  settle_experts(plan, budget_facts_of(files, plan), o, plan.memory);
  set_experts_part(plan, files, o);
  if (plan.reserved) check_fits(plan, o);
  return plan;
}

void plan_experts_anew(MemoryPlan& plan, const ModelFiles& files, const EngineOptions& o) {
  BudgetFacts facts = budget_facts_of(files, plan);
  MemoryInfo memory = device_memory_info(parse_device(o.device), o);
  memory.cap = plan.memory.cap;
  if (memory.cap) memory.cap->bytes -= std::min(memory.cap->bytes, facts.rest());
  facts.weights_bytes = facts.kv_bytes = facts.scratch_bytes = 0;
  settle_experts(plan, facts, o, memory);
  set_experts_part(plan, files, o);
}

}  // namespace ef
