#include "expertflow/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace ef {
namespace {

constexpr double kMb = 1e6;

double bytes_per_access(const SweepRow& row) {
  return row.result.accesses > 0 ? double(row.result.bytes()) / double(row.result.accesses) : 0;
}

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
  return row.distance == 0 ? fmt::format("adaptive ({:.2f})", row.result.mean_distance) : std::to_string(row.distance);
}

std::string replay_table(std::span<const SweepRow> rows) {
  std::string out =
      "| trace | resident | GB/s | policy | predictor | S | hit % | late % | miss % | demand MB | ahead MB | wasted MB "
      "| "
      "stall s | of LRU on demand % | ready % | gap closed % |\n"
      "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
      "|\n";
  for (const SweepRow& row : rows) {
    const ReplayResult& r = row.result;
    const double n = std::max<double>(1, double(r.accesses));
    out += fmt::format(
        "| {} | {:.0f} % | {:.3g} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.0f} | {:.0f} | {:.0f} | {:.3f} | "
        "{:.1f} | {:.1f} | "
        "{:.1f} |\n",
        plain(row.trace), 100 * row.share, row.bandwidth / 1e9, row.policy, row.predictor, distance_text(row),
        100 * r.hit_rate(), 100 * double(r.late) / n, 100 * double(r.misses) / n, double(r.bytes_demand) / kMb,
        double(r.bytes_ahead) / kMb, double(r.bytes_wasted) / kMb, r.stall_seconds,
        row.lru_stall_seconds > 0 ? 100 * r.stall_seconds / row.lru_stall_seconds : 0., 100 * r.ready_recall(),
        100 * row.gap_closed());
  }
  return out;
}

std::string governor_text(std::span<const SweepRow> rows) {
  std::string out;
  for (const SweepRow& row : rows)
    if (const auto& g = row.result.governor)
      out += fmt::format(
          "\n{}, {:.0f} %, {:.3g} GB/s, {}: {:.3f} s in all; prefetch {}; {} of {} steps with it; {} of {} candidates "
          "copied, {} used, {} not; left: {} unlikely, {} beyond the idle link, {} beyond the share of memory\n",
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

std::string replay_svg(std::span<const SweepRow> rows) {
  constexpr double kWidth = 420, kHeight = 300, kLeft = 50, kTop = 30, kPlot = 340, kDeep = 220;
  constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b"};
  struct Panel {
    std::map<std::string, std::vector<std::pair<double, double>>> lines;  // x: share, y: bytes as a share of LRU's most
  };
  std::map<std::string, Panel> panels;
  std::vector<std::string> series;
  double most = 0;
  for (const SweepRow& row : rows) most = std::max(most, bytes_per_access(row));
  if (most <= 0) most = 1;
  for (const SweepRow& row : rows) {
    Panel& panel = panels[row.trace];
    const std::string name = series_of(row);
    if (std::find(series.begin(), series.end(), name) == series.end()) series.push_back(name);
    panel.lines[name].push_back({row.share, bytes_per_access(row) / most});
    const double n = std::max<double>(1, double(row.result.accesses));
    panel.lines["clairvoyant"].push_back({row.share, double(row.clairvoyant_bytes) / n / most});
  }
  series.push_back("clairvoyant");
  const double height = kHeight * double(panels.size()) + 16 * double(series.size()) + 20;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, height);
  double top = 0;
  for (auto& [trace, panel] : panels) {
    const double y0 = top + kTop + kDeep;
    out += fmt::format("<text x=\"{}\" y=\"{}\">{}: bytes copied by residency</text>\n", kLeft, top + 18, plain(trace));
    out += fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"black\"/>\n", kLeft, top + kTop, y0,
                       kLeft + kPlot);
    for (int tick = 0; tick <= 100; tick += 20)
      out += fmt::format("<text x=\"{}\" y=\"{}\">{} %</text>\n", kLeft + kPlot * tick / 100 - 8, y0 + 14, tick);
    for (auto& [name, points] : panel.lines) {
      std::sort(points.begin(), points.end());
      std::string path;
      for (const auto& [x, y] : points)
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", kLeft + kPlot * x, y0 - kDeep * y);
      const size_t index = size_t(std::find(series.begin(), series.end(), name) - series.begin());
      const bool bound = name == "clairvoyant";
      out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{}/>\n", path,
                         bound ? "black" : kColours[index % kColours.size()], bound ? " stroke-dasharray=\"4 3\"" : "");
    }
    top += kHeight;
  }
  for (size_t i = 0; i < series.size(); ++i)
    out += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", kLeft, top + 14 + 16 * double(i),
                       series[i] == "clairvoyant" ? "black" : kColours[i % kColours.size()], plain(series[i]));
  return out + "</svg>\n";
}

}  // namespace ef
