// The endpoints that say how the server does: metrics, health of the experts, latency report, the dashboard's numbers.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/server/api.h"
#include "apps/server/engine_metrics.h"

namespace ef::server {

void Api::expert_health(const Call& call) {
  const auto number = [](const std::optional<double>& v) { return v && std::isfinite(*v) ? Json(*v) : Json(nullptr); };
  Json list = Json::array();
  bool healthy = true;
  for (const MetricHealth& h : health_of(call.model->loop->expert_metrics())) {
    healthy &= h.healthy;
    list.push_back({{"name", h.name},
                    {"meaning", h.meaning},
                    {"value", number(h.value)},
                    {"range", Json::array({number(h.least), number(h.most)})},
                    {"healthy", h.healthy},
                    {"advice", h.advice}});
  }
  call.json({{"status", healthy ? "ok" : "attention"}, {"metrics", list}});
}

// What the page draws: counters to take differences of, and the experts' map.
void Api::dashboard(const Call& call) {
  const EngineLoop& loop = *call.model->loop;
  const EngineLoop::Snapshot s = loop.snapshot();
  const Engine& engine = *call.model->engine;
  const auto& foresight = s.experts.foresight;
  const LatencyReport& report = call.model->report;
  const LatencyReport::Figures warm = report.figures(LatencyReport::kWarm);
  const LatencyReport::Figures felt = warm.requests ? warm : report.figures(LatencyReport::kCold);
  const auto uses = loop.expert_uses();
  Json layers = Json::array();
  for (size_t l = 0; l < engine.config().layers.size(); ++l) {
    const std::vector<uint8_t> states = engine.expert_states(LayerId(l));
    if (states.empty()) continue;
    std::string text;
    for (const uint8_t state : states) text += char('0' + state);
    const bool counted = l < uses.size() && uses[l].size() == states.size();
    layers.push_back(
        {{"layer", l}, {"state", text}, {"uses", counted ? Json(uses[l]) : Json(std::vector<int>(states.size()))}});
  }
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  call.json({{"time", now},
             {"model", call.model->name},
             {"decode_tokens", s.scheduler.decode_tokens},
             {"prefill_tokens", s.scheduler.prefill_tokens},
             {"running", s.scheduler.running},
             {"waiting", s.scheduler.waiting},
             {"slots", s.slots.size()},
             {"kv_used", s.scheduler.kv_used},
             {"prefix_hits", s.scheduler.prefix.hit_tokens},
             {"prefix_queries", s.scheduler.prefix.queried_tokens},
             {"deferred", s.scheduler.deferred_tokens},
             {"ready", s.scheduler.ready_tokens},
             {"step_seconds", s.step_seconds},
             {"hits", s.experts.hits},
             {"misses", s.experts.misses},
             {"bytes_read", s.experts.bytes_read},
             {"stall_seconds", s.experts.stall_seconds},
             {"read_seconds", s.experts.read_seconds},
             {"bytes_per_second", s.experts.bytes_per_second},
             {"bytes_wasted", s.experts.wasted_bytes},
             {"distance", foresight ? Json(foresight->horizon) : Json(nullptr)},
             {"prefetching", foresight && foresight->governor.on},
             {"routed", foresight ? foresight->prediction.routed : 0},
             {"named", foresight ? foresight->prediction.named : 0},
             {"sla_share", felt.requests ? Json(felt.share()) : Json(nullptr)},
             {"expert_budget", std::min(engine.plan().expert_budget, engine.plan().expert_total)},
             {"expert_total", engine.plan().expert_total},
             {"layers", layers}});
}

void Api::metrics(const Call& call) {
  const ServedModel& m = *call.model;
  Exposition out("model_name=\"" + escape_label(m.name) + "\",engine=\"0\"");
  const EngineLoop::Snapshot snapshot = m.loop->snapshot();
  const ExpertMetrics experts = m.loop->expert_metrics();
  m.metrics.write(out);
  out.gauge("expertflow:slots", "Requests that can be computed at once.", double(snapshot.slots.size()));
  const ReadingPool::Counts reading = reading_.counts();
  out.gauge("expertflow:reading_threads", "Threads that read long requests.", reading.threads);
  const char* reading_help = "Long requests that are being read, or wait for it.";
  out.gauge("expertflow:reading_requests", reading_help, reading.running, "state=\"running\"");
  out.gauge("expertflow:reading_requests", reading_help, reading.waiting, "state=\"waiting\"");
  write_scheduler_metrics(out, snapshot);
  write_expert_metrics(out, snapshot.experts, experts);
  write_prediction_metrics(out, snapshot.experts);
  write_expert_health(out, experts);
  write_memory_metrics(out, *m.engine, snapshot.scheduler);
  write_latency_report(out, m.report, m.warm_up);
  write_trace_metrics(out, *tracer_);
  call.reply->send(200, "text/plain; version=0.0.4; charset=utf-8", out.text(), call.headers);
}

void Api::report(const Call& call) {
  const ServedModel& m = *call.model;
  Json body = m.report.json();
  body["warm_up"] = {{"how", m.warm_up.how},
                     {"experts", m.warm_up.experts},
                     {"seconds", m.warm_up.seconds},
                     {"predicted_hit_rate", m.warm_up.how == "profile" ? Json(m.warm_up.demand) : Json(nullptr)}};
  call.json(body);
}

}  // namespace ef::server
