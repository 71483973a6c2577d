#include "expertflow/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace ef {
namespace {

constexpr double kMb = 1e6;

double tokens(const SweepRow& row) { return double(std::max<uint64_t>(1, row.result.tokens)); }

// A name in XML and CSV.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' || c == '>' || c == '&' || c == '"' || c == ',' || c == '\n' ? '_' : c;
  return out;
}

std::string series_of(const SweepRow& row) {
  return row.predictor == "none" ? row.policy : row.policy + ", " + row.predictor + " " + distance_text(row);
}

}  // namespace

std::string distance_text(const SweepRow& row) {
  if (row.predictor == "none") return "-";
  if (row.distance != 0) return std::to_string(row.distance);
  const bool usual = row.diversity_gain == StepControllerOptions{}.diversity_gain;
  return fmt::format("adaptive ({:.2f}{})", row.result.mean_distance,
                     usual ? "" : fmt::format(", gain {:.3g}", row.diversity_gain));
}

std::string replay_table(std::span<const SweepRow> rows) {
  std::string out =
      "| trace | resident | GB/s | policy | predictor | S | hit % | late % | miss % | demand MB | ahead MB | wasted MB "
      "| clairvoyant MB | gap closed % | stall s | of LRU on demand % | ready % |\n"
      "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
      "| ---: |\n";
  for (const SweepRow& row : rows) {
    const ReplayResult& r = row.result;
    const double n = std::max<double>(1, double(r.accesses));
    out += fmt::format(
        "| {} | {:.0f} % | {:.3g} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | "
        "{:.1f} | {:.3f} | {:.1f} | {:.1f} |\n",
        plain(row.trace), 100 * row.share, row.bandwidth / 1e9, row.policy, row.predictor, distance_text(row),
        100 * r.hit_rate(), 100 * double(r.late) / n, 100 * double(r.misses) / n, double(r.bytes_demand) / kMb,
        double(r.bytes_ahead) / kMb, double(r.bytes_wasted) / kMb, double(row.clairvoyant_bytes) / kMb,
        100 * row.gap_closed(), r.stall_seconds,
        row.lru_stall_seconds > 0 ? 100 * r.stall_seconds / row.lru_stall_seconds : 0., 100 * r.ready_recall());
  }
  return out;
}

std::string governor_text(std::span<const SweepRow> rows) {
  std::string out;
  for (const SweepRow& row : rows)
    if (const auto& g = row.result.governor)
      out += fmt::format(
          "\n{}, {:.0f} %, {:.3g} GB/s, {}: {:.3f} s in all; prefetch {}; {} of {} steps with it; {} of {} candidates "
          "copied, {} used, {} not; left: {} unlikely, {} beyond what the link can begin, {} beyond the share of "
          "memory\n",
          plain(row.trace), 100 * row.share, row.bandwidth / 1e9, series_of(row), row.result.total_seconds, g->reason(),
          g->steps_on, g->steps_on + g->steps_off, g->issued, g->candidates, g->used, g->unused, g->unlikely,
          g->over_budget, g->over_share);
  return out;
}

nlohmann::ordered_json replay_json(std::span<const SweepRow> rows) {
  auto all = nlohmann::ordered_json::array();
  for (const SweepRow& row : rows) {
    const ReplayResult& r = row.result;
    nlohmann::ordered_json j;
    j["trace"] = row.trace, j["policy"] = row.policy, j["predictor"] = row.predictor;
    j["distance"] = row.distance, j["mean_distance"] = r.mean_distance;
    j["resident_share"] = row.share, j["budget_bytes"] = row.budget_bytes;
    j["bandwidth"] = row.bandwidth;
    j["tokens"] = r.tokens, j["steps"] = r.steps, j["accesses"] = r.accesses;
    j["hits"] = r.hits, j["late"] = r.late, j["misses"] = r.misses, j["hit_rate"] = r.hit_rate();
    j["bytes_demand"] = r.bytes_demand, j["bytes_ahead"] = r.bytes_ahead, j["bytes_wasted"] = r.bytes_wasted;
    j["ahead"] = r.ahead, j["ahead_used"] = r.ahead_used, j["ahead_cancelled"] = r.ahead_cancelled;
    j["ready_recall"] = r.ready_recall();
    j["compute_seconds"] = r.compute_seconds, j["stall_seconds"] = r.stall_seconds;
    j["total_seconds"] = r.total_seconds, j["lru_stall_seconds"] = row.lru_stall_seconds;
    j["lru_bytes"] = row.lru_bytes, j["clairvoyant_bytes"] = row.clairvoyant_bytes, j["gap_closed"] = row.gap_closed();
    if (r.governor)
      j["governor"] = {{"reason", r.governor->reason()},     {"steps_on", r.governor->steps_on},
                       {"steps_off", r.governor->steps_off}, {"issued", r.governor->issued},
                       {"used", r.governor->used},           {"unused", r.governor->unused},
                       {"trials", r.governor->trials}};
    if (row.distance == 0 && row.predictor != "none") {
      j["diversity_gain"] = row.diversity_gain;
      const StepControllerStats& d = r.distance;
      j["formula"] = d.formula, j["steps_within_1_of_formula"] = r.distance_within;
      j["expected_experts"] = d.expected, j["measured_bandwidth"] = d.bandwidth, j["layer_seconds"] = d.layer_seconds;
      j["distances"] = nlohmann::ordered_json::array();
      for (const auto& [token, distance] : r.distances) j["distances"].push_back({token, distance});
      j["changes"] = nlohmann::ordered_json::array();
      for (const StepChange& c : d.changes)
        j["changes"].push_back(
            {{"token", c.token}, {"from", c.from}, {"to", c.to}, {"formula", c.formula}, {"reason", c.reason}});
    }
    all.push_back(std::move(j));
  }
  return all;
}

std::string replay_csv(std::span<const SweepRow> rows) {
  std::string out =
      "trace,resident_share,bandwidth,policy,predictor,distance,mean_distance,tokens,accesses,hits,late,misses,bytes_"
      "demand,"
      "bytes_ahead,bytes_wasted,ready_recall,compute_seconds,stall_seconds,total_seconds,lru_bytes,lru_stall_seconds,"
      "clairvoyant_bytes,gap_closed\n";
  for (const SweepRow& row : rows) {
    const ReplayResult& r = row.result;
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", plain(row.trace),
                       row.share, row.bandwidth, row.policy, row.predictor, row.distance, r.mean_distance, r.tokens,
                       r.accesses, r.hits, r.late, r.misses, r.bytes_demand, r.bytes_ahead, r.bytes_wasted,
                       r.ready_recall(), r.compute_seconds, r.stall_seconds, r.total_seconds, row.lru_bytes,
                       row.lru_stall_seconds, row.clairvoyant_bytes, row.gap_closed());
  }
  return out;
}

namespace {

constexpr double kPanelWidth = 420, kPanelHeight = 300, kLeft = 50, kTop = 30, kPlot = 340, kDeep = 220;
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b"};
constexpr const char* kBound = "clairvoyant";

using Lines = std::map<std::string, std::vector<std::pair<double, double>>>;  // by series; x: share of all experts

// What one column of panels shows.
struct Quantity {
  const char* title;
  double (*of)(const SweepRow&);
  bool (*applies)(const SweepRow&);
};
constexpr std::array kQuantities = {
    Quantity{"MB copied a token", [](const SweepRow& row) { return double(row.result.bytes()) / kMb / tokens(row); },
             [](const SweepRow&) { return true; }},
    Quantity{"ms waited a token", [](const SweepRow& row) { return 1e3 * row.result.stall_seconds / tokens(row); },
             [](const SweepRow&) { return true; }},
    Quantity{"mean distance S", [](const SweepRow& row) { return row.result.mean_distance; },
             [](const SweepRow& row) { return row.predictor != "none"; }},
};

std::string panel_svg(double left, double top, const std::string& title, double most, Lines lines,
                      std::span<const std::string> series) {
  const double x0 = left + kLeft, y0 = top + kTop + kDeep;
  std::string out = fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", x0, top + 18, title);
  out += fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"black\"/>\n", x0, top + kTop, y0, x0 + kPlot);
  out += fmt::format("<text x=\"{}\" y=\"{}\">{:.3g}</text>\n<text x=\"{}\" y=\"{}\">0</text>\n", left + 8,
                     top + kTop + 8, most, left + 8, y0);
  for (int tick = 0; tick <= 100; tick += 20)
    out += fmt::format("<text x=\"{}\" y=\"{}\">{} %</text>\n", x0 + kPlot * tick / 100 - 8, y0 + 14, tick);
  for (auto& [name, points] : lines) {
    std::sort(points.begin(), points.end());
    std::string path;
    for (const auto& [x, y] : points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x0 + kPlot * x, y0 - kDeep * y / most);
    const size_t index = size_t(std::find(series.begin(), series.end(), name) - series.begin());
    const bool bound = name == kBound;
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{}/>\n", path,
                       bound ? "black" : kColours[index % kColours.size()], bound ? " stroke-dasharray=\"4 3\"" : "");
  }
  return out;
}

}  // namespace

std::string replay_svg(std::span<const SweepRow> rows) {
  std::vector<std::string> series, traces;
  std::set<double> bandwidths;
  const auto note = [](std::vector<std::string>& all, const std::string& name) {
    if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  };
  for (const SweepRow& row : rows) bandwidths.insert(row.bandwidth);
  const auto name_of = [&](const SweepRow& row) {
    return series_of(row) + (bandwidths.size() > 1 ? fmt::format(", {:.3g} GB/s", row.bandwidth / 1e9) : "");
  };
  for (const SweepRow& row : rows) note(series, name_of(row)), note(traces, row.trace);
  series.push_back(kBound);
  const double width = kPanelWidth * double(kQuantities.size());
  const double height = kPanelHeight * double(traces.size()) + 16 * double(series.size()) + 20;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
  for (size_t q = 0; q < kQuantities.size(); ++q) {
    const Quantity& quantity = kQuantities[q];
    double most = 0;  // of all traces: their panels have one scale
    for (const SweepRow& row : rows)
      if (quantity.applies(row)) most = std::max(most, quantity.of(row));
    for (size_t t = 0; t < traces.size(); ++t) {
      Lines lines;
      for (const SweepRow& row : rows) {
        if (row.trace != traces[t] || !quantity.applies(row)) continue;
        lines[name_of(row)].push_back({row.share, quantity.of(row)});
        if (q == 0) lines[kBound].push_back({row.share, double(row.clairvoyant_bytes) / kMb / tokens(row)});
      }
      out += panel_svg(kPanelWidth * double(q), kPanelHeight * double(t),
                       plain(traces[t]) + ": " + quantity.title + " by residency", most > 0 ? most : 1,
                       std::move(lines), series);
    }
  }
  const double top = kPanelHeight * double(traces.size());
  for (size_t i = 0; i < series.size(); ++i)
    out += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", kLeft, top + 14 + 16 * double(i),
                       series[i] == kBound ? "black" : kColours[i % kColours.size()], plain(series[i]));
  return out + "</svg>\n";
}

}  // namespace ef
