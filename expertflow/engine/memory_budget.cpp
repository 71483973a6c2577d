#include "expertflow/engine/memory_budget.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

constexpr std::string_view kForms =
    "expected bytes (6GiB, 512MiB), a share of the experts (40%), slots of every layer (12 slots), min or auto";

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  fail<ConfigError>("expert memory '{}': {}; {}", text, why, kForms);
}

std::string lower_without_spaces(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c != ' ' && c != '\t') out += char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

// Bytes of a unit, 0 if unknown.
double unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  const size_t power = std::string_view("kmgt").find(unit[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  const double base = rest.empty() || rest == "i" || rest == "ib" ? 1024 : rest == "b" ? 1000 : 0;
  return base == 0 ? 0 : std::pow(base, double(power + 1));
}

uint64_t scaled(uint64_t bytes, double factor) { return uint64_t(std::floor(double(bytes) * factor)); }

// Of what is left, the margin that no cap leaves free already.
uint64_t margin_within(const MemoryInfo& memory, uint64_t left) {
  MemoryInfo whole = memory;
  whole.cap.reset();
  const uint64_t all = whole.left().value_or(left), margin = memory_margin(all);
  return margin - std::min(margin, all - left);
}

std::string rest_text(const BudgetFacts& facts) {
  return fmt::format("weights {}, KV cache {}, scratch {}", format_bytes(facts.weights_bytes),
                     format_bytes(facts.kv_bytes), format_bytes(facts.scratch_bytes));
}

Budget automatic(const BudgetFacts& facts, const MemoryInfo& memory) {
  const auto left = memory.left();
  EF_CHECK(left.has_value(), ConfigError,
           "expert memory 'auto': neither MemAvailable nor a cgroup limit could be read; {}", kForms);
  const uint64_t margin = margin_within(memory, *left), needed = facts.rest() + margin;
  const uint64_t room = *left > needed ? *left - needed : 0;
  EF_CHECK(
      room >= facts.largest_slot, ConfigError,
      "expert memory 'auto': {} are left ({}); the rest needs {} ({}) and {} stay free, so {} remain, but the largest "
      "expert takes {}",
      format_bytes(*left), memory.text(), format_bytes(facts.rest()), rest_text(facts), format_bytes(margin),
      format_bytes(room), format_bytes(facts.largest_slot));
  return {std::min(room, facts.expert_bytes), fmt::format("auto: {}, minus {}, minus a margin of {}", memory.text(),
                                                          rest_text(facts), format_bytes(margin))};
}

uint64_t asked_bytes(const BudgetRequest& request, const BudgetFacts& facts) {
  switch (request.kind) {
    case BudgetRequest::Kind::kBytes:
      return request.bytes;
    case BudgetRequest::Kind::kShare:
      return scaled(facts.expert_bytes, request.share);
    case BudgetRequest::Kind::kMinimum:
      return facts.largest_slot;
    case BudgetRequest::Kind::kSlots:
      return request.slots > facts.expert_bytes / std::max<uint64_t>(1, facts.layer_slots)
                 ? facts.expert_bytes
                 : request.slots * facts.layer_slots;
    case BudgetRequest::Kind::kAuto:
      break;
  }
  return 0;
}

}  // namespace

uint64_t memory_margin(uint64_t left) {
  constexpr uint64_t kMiB = 1 << 20;
  return std::clamp<uint64_t>(left / 20, 128 * kMiB, 1024 * kMiB);
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = double(bytes);
  size_t unit = 0;
  for (value /= 1024; value >= 1024 && unit + 1 < kUnits.size(); value /= 1024) ++unit;
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

BudgetRequest parse_budget(std::string_view text) {
  BudgetRequest out;
  out.text = text;
  const std::string s = lower_without_spaces(text);
  if (s == "auto") return out;
  if (s == "min") {
    out.kind = BudgetRequest::Kind::kMinimum;
    return out;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value)) refuse(text, "not a number");
  const std::string_view unit(end, size_t(s.data() + s.size() - end));
  if (!(value > 0)) refuse(text, "must be more than 0");
  if (unit == "%") {
    if (value > 100) refuse(text, "a share is at most 100%");
    out.kind = BudgetRequest::Kind::kShare;
    out.share = value / 100;
  } else if (unit == "slots" || unit == "slot") {
    if (value != std::floor(value) || value > 1e9) refuse(text, "slots are a whole number");
    out.kind = BudgetRequest::Kind::kSlots;
    out.slots = uint64_t(value);
  } else {
    const double factor = unit_bytes(unit);
    if (factor == 0) refuse(text, fmt::format("unknown unit '{}'", unit));
    if (value * factor >= 0x1p63) refuse(text, "too large");
    if (factor == 1 && value != std::floor(value)) refuse(text, "bytes are a whole number");
    out.kind = BudgetRequest::Kind::kBytes;
    out.bytes = uint64_t(value * factor);
  }
  return out;
}

BudgetFacts budget_facts(const CacheGeometry& geometry) {
  BudgetFacts facts;
  facts.expert_bytes = geometry.total_footprint();
  facts.largest_slot = geometry.largest_footprint();
  for (size_t i = 0; i < geometry.layers.size(); ++i)
    if (geometry.layers[i].experts > 0) facts.layer_slots += geometry.footprint(LayerId(i));
  return facts;
}

Budget resolve_budget(const BudgetRequest& request, const BudgetFacts& facts, const MemoryInfo& memory) {
  Budget out;
  if (request.kind == BudgetRequest::Kind::kAuto) {
    out = automatic(facts, memory);
  } else {
    const uint64_t asked = asked_bytes(request, facts);
    EF_CHECK(asked >= facts.largest_slot, ConfigError,
             "expert memory '{}': {} bytes are too few: the largest expert takes {} bytes ({}); all experts take {}",
             request.text, asked, facts.largest_slot, format_bytes(facts.largest_slot),
             format_bytes(facts.expert_bytes));
    out.bytes = std::min(asked, facts.expert_bytes);
    out.explanation = asked > facts.expert_bytes ? fmt::format("'{}', more than all experts take", request.text)
                                                 : fmt::format("'{}'", request.text);
    const auto left = memory.left();
    EF_CHECK(!left || (facts.rest() <= *left && out.bytes <= *left - facts.rest()), ConfigError,
             "expert memory '{}': experts {} and the rest {} ({}) need {} more than the {} that are left ({})",
             request.text, format_bytes(out.bytes), format_bytes(facts.rest()), rest_text(facts),
             format_bytes(out.bytes + facts.rest() - *left), format_bytes(*left), memory.text());
  }
  const double share = facts.expert_bytes == 0 ? 1. : double(out.bytes) / double(facts.expert_bytes);
  out.explanation = fmt::format("experts: {} of {} ({:.1f} %); {}", format_bytes(out.bytes),
                                format_bytes(facts.expert_bytes), 100 * share, out.explanation);
  return out;
}

}  // namespace ef
