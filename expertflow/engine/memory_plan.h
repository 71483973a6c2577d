// Where memory goes, before anything is loaded: parts of three regions, from headers alone, and whether they fit.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/backend/memory.h"
#include "expertflow/engine/engine_options.h"
#include "expertflow/engine/memory_budget.h"
#include "expertflow/engine/model_files.h"
#include "expertflow/model/kv_cache.h"

namespace ef {

/// Tokens of KV cache that --ctx-size means for a model.
int64_t context_tokens(int64_t ctx_size, const Config& config);
KvOptions kv_options(const Config& config, const EngineOptions& options);
int64_t logit_rows(const EngineOptions& options);

/// What is reserved of an expected peak: it may be estimated too low by a fifth.
constexpr double kHeadroom = 1.2;

/// One part of the plan, held under the same name (MemoryUse::part). `bytes` is what it takes where that is known in
/// advance, else the expected peak.
struct PlanPart {
  Region region = Region::kStatic;
  std::string_view name;
  uint64_t bytes = 0;
  bool exact = true;
  uint64_t pieces = 1;        ///< allocations at most
  uint64_t reserved() const;  ///< bytes, or kHeadroom of what is an estimate
};

struct MemoryPlan {
  uint64_t resident_bytes = 0;  ///< weights that are not routed experts
  uint64_t kv_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint64_t expert_budget = 0;  ///< effective
  uint64_t expert_total = 0;   ///< all routed experts
  std::string explanation;     ///< how the budget came about

  std::vector<PlanPart> parts;
  MemoryInfo memory;      ///< of the device, when this was made
  bool reserved = false;  ///< regions are taken at once, before loading; else each part when it is needed
  uint64_t expected(Region region) const;
  /// What the region is reserved with: its parts, and room between their pieces. Where nothing is reserved, expected().
  uint64_t taken(Region region) const;
  uint64_t taken() const;
  std::string text(Region region) const;  ///< "KV cache 1.50 GiB, activations 80.00 MiB"
};

/// What an engine with these options will take beside experts, from headers alone; expert_budget is left 0.
MemoryPlan plan_memory(const ModelFiles& files, const EngineOptions& options);
/// The same as the numbers that a budget is resolved against.
BudgetFacts budget_facts_of(const ModelFiles& files, const MemoryPlan& plan);

/// The whole plan, experts included, held against what the device has. ConfigError with the numbers if it cannot work.
/// options: settled().
MemoryPlan plan_engine(const ModelFiles& files, const EngineOptions& options);
MemoryPlan plan_engine(const ModelFiles& files, const EngineOptions& options, const MemoryInfo& memory);
/// Puts another budget for experts into a plan whose other parts, and experts of old that have gone, are taken already.
void plan_experts_anew(MemoryPlan& plan, const ModelFiles& files, const EngineOptions& options);

}  // namespace ef
