#include "apps/cli/inspect_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "expertflow/measure/heat_map.h"
#include "expertflow/measure/trace_load.h"

namespace ef::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kShares[] = {0.10, 0.15, 0.25, 0.40, 0.45, 0.60};  // of the experts, for what LRU would serve
constexpr int kBatches[] = {1, 4, 8, 16, 32};

Json layer_json(const LayerLoad& l) {
  return {{"layer", l.layer},
          {"rows_by_expert", l.rows},
          {"entropy_bits", l.entropy},
          {"entropy_share", l.entropy_share},
          {"coefficient_of_variation", l.variation},
          {"expected_shared_by_two_rows", l.expected_shared},
          {"uniform_shared_by_two_rows", l.uniform_shared},
          {"shared_with_row_before", l.neighbour_shared},
          {"median_steps_between_uses", l.median_gap}};
}

Json describe(const TraceHeader& header, const TraceLoad& load) {
  Json layers = Json::array(), lru = Json::array(), batches = Json::array();
  for (const LayerLoad& l : load.layers) layers.push_back(layer_json(l));
  for (const double share : kShares) {
    const auto slots = uint64_t(share * double(load.experts));
    lru.push_back({{"share", share}, {"slots", slots}, {"hit_rate", load.lru_hit_rate(slots)}});
  }
  for (const int rows : kBatches) {
    const double distinct = load.expected_distinct(rows);
    batches.push_back({{"rows", rows}, {"distinct", distinct}, {"collisions", rows * load.top_k - distinct}});
  }
  const auto reuse = [&](double share) {
    const auto value = load.reuse_percentile(share);
    return value ? Json(*value) : Json(nullptr);
  };
  return {{"model", header.model},
          {"fingerprint", header.fingerprint},
          {"hidden_states", header.hidden_states},
          {"steps", load.steps},
          {"rows", load.rows},
          {"requests", load.requests},
          {"accesses", load.accesses},
          {"experts", load.experts},
          {"top_k", load.top_k},
          {"layers", layers},
          {"expected_experts_of_a_layer", batches},
          {"reuse_distance",
           {{"p50", reuse(0.5)}, {"p90", reuse(0.9)}, {"p99", reuse(0.99)}, {"first_uses", load.first_uses}}},
          {"lru_of_equal_slots", lru}};
}

// Two letters a cell would not fit a terminal: eight steps of shade do.
std::string shades(const std::vector<uint64_t>& rows) {
  static constexpr const char* kShades[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const uint64_t most = std::max<uint64_t>(1, *std::max_element(rows.begin(), rows.end()));
  std::string text;
  for (const uint64_t n : rows) text += kShades[(n * 8 + most - 1) / most];
  return text;
}

void print_text(const TraceHeader& header, const TraceLoad& load) {
  fmt::print("{}: {} steps, {} tokens of {} requests; {} experts in {} layers, top-{}{}\n", header.model, load.steps,
             load.rows, load.requests, load.experts, load.layers.size(), load.top_k,
             header.hidden_states ? "; with hidden states" : "");
  fmt::print(
      "\n| layer | entropy, bits | of equal load | variation | shared by two rows | if equal | with the row before | "
      "steps between uses | load by expert |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const LayerLoad& l : load.layers)
    fmt::print("| {} | {:.2f} | {:.1f} % | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:g} | {} |\n", l.layer, l.entropy,
               100 * l.entropy_share, l.variation, l.expected_shared, l.uniform_shared, l.neighbour_shared,
               l.median_gap, shades(l.rows));
  fmt::print("\n| rows at once | distinct experts of a layer, expected | collisions |\n| --- | --- | --- |\n");
  for (const int rows : kBatches) {
    const double distinct = load.expected_distinct(rows);
    fmt::print("| {} | {:.1f} | {:.1f} |\n", rows, distinct, rows * load.top_k - distinct);
  }
  if (const auto middle = load.reuse_percentile(0.5))
    fmt::print(
        "\nreuse distance (other experts asked for between two uses of one, all layers): half within {}, 90 % within "
        "{}, 99 % within {}; {} first uses\n",
        *middle, *load.reuse_percentile(0.9), *load.reuse_percentile(0.99), load.first_uses);
  fmt::print("\n| slots | share of experts | accesses that LRU would serve |\n| --- | --- | --- |\n");
  for (const double share : kShares) {
    const auto slots = uint64_t(share * double(load.experts));
    fmt::print("| {} | {:.0f} % | {:.1f} % |\n", slots, 100 * share, 100 * load.lru_hit_rate(slots));
  }
}

HeatMap heat_map_of(const TraceHeader& header, const TraceLoad& load) {
  HeatMap map;
  map.title = fmt::format("{}: share of {} tokens that chose each expert", header.model, load.rows);
  map.value_name = "of tokens";
  for (const LayerLoad& l : load.layers) {
    map.rows.push_back(l.layer);
    std::vector<double> row;
    for (const uint64_t n : l.rows) row.push_back(double(n) / double(std::max<uint64_t>(1, load.rows)));
    map.values.push_back(std::move(row));
  }
  return map;
}

}  // namespace

int inspect_trace(const std::string& path, bool json, const std::string& heat_map) {
  TraceReader trace{std::filesystem::path(path)};
  const TraceLoad load = load_of(trace);
  if (!heat_map.empty()) write_heat_map(heat_map_of(trace.header(), load), heat_map);
  if (json)
    fmt::print("{}\n", describe(trace.header(), load).dump(2));
  else
    print_text(trace.header(), load);
  return 0;
}

}  // namespace ef::cli
