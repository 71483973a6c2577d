#include "apps/cli/memory_text.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "expertflow/backend/cpu/cpu_backend.h"

namespace ef::cli {

namespace {

constexpr std::array kAllRegions = {Region::kStatic, Region::kDynamic, Region::kElastic};

std::string device_of(const EngineOptions& options) { return options.device == "auto" ? "cpu" : options.device; }

uint64_t remaining(const MemoryPlan& plan) {
  const uint64_t left = plan.memory.left().value_or(0), taken = plan.taken();
  return left - std::min(left, taken);
}

std::string part_text(const MemoryPlan& plan, const PlanPart& part) {
  if (part.exact) return fmt::format("  {:<18} {:>12}\n", part.name, format_bytes(part.bytes));
  return fmt::format("  {:<18} {:>12}  {}\n", part.name, format_bytes(part.bytes),
                     plan.reserved ? fmt::format("estimate, {} reserved", format_bytes(part.reserved())) : "at most");
}

std::string time_of(uint64_t step) { return step == 0 ? "loading" : fmt::format("step {}", step); }

std::string pieces_of(size_t n) { return fmt::format("{} piece{}", n, n == 1 ? "" : "s"); }

// Pieces of one part that came and went together.
struct Group {
  MemoryPiece first;
  size_t pieces = 0;
  uint64_t bytes = 0;
};
std::vector<Group> groups_of(const MemoryReport& report) {
  std::map<std::tuple<std::string_view, uint64_t, uint64_t>, Group> groups;
  for (const MemoryPiece& piece : report.pieces) {
    Group& group = groups[{piece.use.part, piece.from, piece.until.value_or(UINT64_MAX)}];
    group.first = piece;
    ++group.pieces, group.bytes += piece.bytes;
  }
  std::vector<Group> out;
  for (const auto& [key, group] : groups) out.push_back(group);
  const auto rank = [&](const Group& g) {
    return std::tuple(g.first.until.value_or(report.steps) - g.first.from, !g.first.until, g.bytes);
  };
  std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return rank(a) > rank(b); });
  return out;
}

std::string group_line(const Group& g, const MemoryReport& report) {
  const uint64_t until = g.first.until.value_or(report.steps);
  return fmt::format("memory: held {} steps: {}, {} in {}, from {}{}", until - g.first.from, g.first.use.part,
                     format_bytes(g.bytes), pieces_of(g.pieces), time_of(g.first.from),
                     g.first.until ? " until " + time_of(until) : "");
}

std::string region_line(const RegionReport& r) {
  const std::string used = fmt::format("memory: {}: {} used in {}, {} at the most", region_name(r.region),
                                       format_bytes(r.used), pieces_of(r.pieces), format_bytes(r.peak));
  if (r.reserved == 0) return used;
  return fmt::format("{}; {} reserved, {} free, longest extent {}, fragmentation {:.2f}", used,
                     format_bytes(r.reserved), format_bytes(r.free), format_bytes(r.largest_free), r.fragmentation);
}

std::string slots_line(const CacheStats& s) {
  const uint64_t free = s.pool_bytes - s.bytes_in_use;
  const double fragmentation = free == 0 ? 0. : 1. - double(s.largest_free_bytes) / double(free);
  return fmt::format("memory: slots: {} of {} in use, {} free, longest extent {}, fragmentation {:.2f}",
                     format_bytes(s.bytes_in_use), format_bytes(s.pool_bytes), format_bytes(free),
                     format_bytes(s.largest_free_bytes), fragmentation);
}

}  // namespace

MemoryPlan plan_without_loading(const ModelFiles& files, const EngineOptions& options) {
  parse_isa(options.isa), parse_activations(options.activations);  // what making a backend would refuse
  return plan_engine(files, settled(options));
}

std::string plan_text(const MemoryPlan& plan, const EngineOptions& options) {
  std::string out = fmt::format("{:<20} {}{}\n", device_of(options), plan.memory.text(),
                                plan.memory.total ? ", in all " + format_bytes(*plan.memory.total) : "");
  for (const Region region : kAllRegions) {
    out += fmt::format("{:<20} {:>12}{}\n", region_name(region), format_bytes(plan.taken(region)),
                       plan.reserved ? "  reserved" : "");
    for (const PlanPart& part : plan.parts)
      if (part.region == region) out += part_text(plan, part);
  }
  out += fmt::format("{:<20} {:>12}\n{:<20} {:>12}\n{}\n", "total", format_bytes(plan.taken()), "remaining",
                     format_bytes(remaining(plan)), plan.explanation);
  return out;
}

nlohmann::ordered_json plan_json(const MemoryPlan& plan, const EngineOptions& options) {
  nlohmann::ordered_json json;
  const auto known = [](const std::optional<uint64_t>& bytes) {
    return bytes ? nlohmann::ordered_json(*bytes) : nlohmann::ordered_json();
  };
  json["device"] = device_of(options);
  json["device_bytes"] = known(plan.memory.total);
  json["available_bytes"] = known(plan.memory.available);
  json["usable_bytes"] = known(plan.memory.left());
  json["reserved"] = plan.reserved;
  json["regions"] = nlohmann::ordered_json::array();
  for (const Region region : kAllRegions) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const PlanPart& part : plan.parts)
      if (part.region == region)
        parts.push_back({{"part", part.name},
                         {"bytes", part.bytes},
                         {"exact", part.exact},
                         {"reserved_bytes", plan.reserved ? part.reserved() : 0}});
    json["regions"].push_back({{"region", region_name(region)},
                               {"expected_bytes", plan.expected(region)},
                               {"taken_bytes", plan.taken(region)},
                               {"parts", parts}});
  }
  json["taken_bytes"] = plan.taken();
  json["remaining_bytes"] = remaining(plan);
  json["expert_bytes"] = plan.expert_total;
  json["expert_budget_bytes"] = plan.expert_budget;
  json["explanation"] = plan.explanation;
  return json;
}

std::vector<std::string> memory_report_lines(const MemoryReport& report) {
  constexpr size_t kShown = 12;
  std::vector<std::string> lines;
  for (const RegionReport& region : report.regions) lines.push_back(region_line(region));
  if (report.slots) lines.push_back(slots_line(*report.slots));
  size_t later = 0;
  uint64_t later_bytes = 0;
  for (const MemoryPiece& piece : report.pieces)
    if (piece.from > 0) ++later, later_bytes += piece.bytes;
  lines.push_back(fmt::format("memory: taken after loading, in {} steps: {}, {}", report.steps, pieces_of(later),
                              format_bytes(later_bytes)));
  std::vector<Group> groups = groups_of(report);
  groups.resize(std::min(groups.size(), kShown));
  for (const Group& group : groups) lines.push_back(group_line(group, report));
  return lines;
}

}  // namespace ef::cli
