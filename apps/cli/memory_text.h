// Plans of memory, and what became of them, as text and as JSON.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/common.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/memory_plan.h"

namespace ef::cli {

/// The plan of an engine that is not made: headers are read and nothing else. ConfigError as from an engine.
MemoryPlan plan_without_loading(const ModelFiles& files, const EngineOptions& options);

std::string plan_text(const MemoryPlan& plan, const EngineOptions& options);
nlohmann::ordered_json plan_json(const MemoryPlan& plan, const EngineOptions& options);

/// Regions, the pool of slots, and what was held longest.
std::vector<std::string> memory_report_lines(const MemoryReport& report);

}  // namespace ef::cli
