#include "apps/server/engine_metrics.h"

#include <fmt/format.h>

#include <cmath>

namespace ef::server {

void write_scheduler_metrics(Exposition& out, const EngineLoop::Snapshot& snapshot) {
  const SchedulerStats& s = snapshot.scheduler;
  out.gauge("vllm:num_requests_running", "Requests that are being computed.", s.running);
  out.gauge("vllm:num_requests_waiting", "Requests that wait for a slot or for room in the KV cache.", s.waiting);
  out.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that requests hold, 0 to 1.", s.kv_used);
  out.counter("vllm:num_preemptions_total", "Requests that gave up their KV cache to be computed again.",
              double(s.preemptions));
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.",
              double(s.prefix.queried_tokens));
  out.counter("vllm:prefix_cache_hits_total", "Of them, those that were there.", double(s.prefix.hit_tokens));
  out.counter("expertflow:steps_total", "Forward calls.", double(s.steps));
  out.counter("expertflow:step_seconds_total", "Time in them.", snapshot.step_seconds);
  out.counter("expertflow:failed_steps_total", "Of them, those that failed and were tried again one by one.",
              double(s.failed_steps));
  out.counter("expertflow:prefill_tokens_total", "Prompt tokens computed, recomputed ones included.",
              double(s.prefill_tokens));
  out.counter("expertflow:decode_tokens_total", "Tokens computed one by one.", double(s.decode_tokens));
  out.counter("expertflow:ready_tokens_total", "Tokens that could have gone, a count a step.", double(s.ready_tokens));
  out.counter("expertflow:deferred_tokens_total", "Of them, put off for others whose experts were near.",
              double(s.deferred_tokens));
  out.gauge("expertflow:prefix_cache_blocks", "KV blocks kept for prompts to come.", double(s.prefix.blocks));
}

namespace {

std::string label(std::string_view name, std::string_view value) { return fmt::format("{}=\"{}\"", name, value); }

void write_layers(Exposition& out, const std::vector<LayerCacheStats>& layers) {
  const auto each = [&](const auto& write) {
    for (size_t l = 0; l < layers.size(); ++l)
      if (layers[l].hits + layers[l].late_hits + layers[l].misses > 0)
        write(layers[l], label("layer", std::to_string(l)));
  };
  each([&](const LayerCacheStats& s, const std::string& layer) {
    out.counter("expertflow:layer_expert_hits_total", "Distinct experts that the layer found resident.", double(s.hits),
                layer);
  });
  each([&](const LayerCacheStats& s, const std::string& layer) {
    out.counter("expertflow:layer_expert_misses_total", "... that it had to wait for.", double(s.late_hits + s.misses),
                layer);
  });
  each([&](const LayerCacheStats& s, const std::string& layer) {
    out.gauge("expertflow:layer_expert_hit_rate", "Hits of both.",
              double(s.hits) / double(s.hits + s.late_hits + s.misses), layer);
  });
}

}  // namespace

void write_expert_metrics(Exposition& out, const ExpertStats& e, const ExpertMetrics& metrics) {
  out.counter("expertflow:expert_hits_total", "Distinct experts that layers asked for and that were resident.",
              double(e.hits));
  out.counter("expertflow:expert_misses_total", "... that were not.", double(e.misses));
  out.gauge("expertflow:expert_hit_rate", "Hits of both.", e.hit_rate());
  // Where an expert was when its layer asked for it.
  const uint64_t slow = e.misses - e.late_hits, all = e.hits + e.misses;
  const std::array<std::pair<const char*, uint64_t>, 3> tiers{
      {{"fast", e.hits}, {"in_flight", e.late_hits}, {"slow", slow}}};
  for (const auto& [tier, count] : tiers)
    out.counter("expertflow:tier_expert_hits_total",
                "Distinct experts by where they were when asked for: in the fast tier, on their way to it, or in the "
                "slow tier.",
                double(count), label("tier", tier));
  for (const auto& [tier, count] : tiers)
    out.gauge("expertflow:tier_expert_hit_rate", "Their shares.", all ? double(count) / double(all) : 0.0,
              label("tier", tier));
  write_layers(out, e.layers);
  out.counter("expertflow:expert_evictions_total", "Experts that had to leave the fast tier.", double(e.evictions));
  out.counter("expertflow:expert_waves_total", "Rounds of slots beyond the first that layers needed.", double(e.waves));
  out.counter("expertflow:expert_bytes_read_total", "Read to fill slots.", double(e.bytes_read));
  out.counter("expertflow:expert_bytes_useful_total",
              "Read because a layer waited, or ahead and there when a layer asked.",
              double(metrics.demand_bytes + e.ahead_used_bytes));
  out.counter("expertflow:expert_bytes_ahead_total", "Read before anybody asked.", double(e.ahead_bytes));
  out.counter("expertflow:expert_bytes_wasted_total", "Of them, gone again or taken back under way before any use.",
              double(e.wasted_bytes));
  out.counter("expertflow:expert_read_seconds_total", "Time in which a read was under way.", e.read_seconds);
  out.counter("expertflow:expert_read_retries_total", "Reads that were tried again.", double(e.read_retries));
  out.counter("expertflow:expert_stall_seconds_total", "Time in which compute waited for experts.", e.stall_seconds);
  if (!e.io.empty())
    out.gauge("expertflow:link_bytes_per_second",
              "Speed at which experts come over a link, of late, while any is under way; 0: not measured yet.",
              e.bytes_per_second, label("link", "disk"));
  out.counter("expertflow:read_ahead_total", "Experts read before a layer asked.", double(e.ahead));
  out.counter("expertflow:read_ahead_used_total", "Of them, asked for.", double(e.ahead_used));
  out.counter("expertflow:read_ahead_late_total", "Of these, still on their way then.", double(e.ahead_late));
  out.counter("expertflow:read_ahead_wasted_total", "Experts read ahead that their layer did not ask for.",
              double(e.ahead_wasted));
  out.counter("expertflow:read_ahead_cancelled_total", "... that were taken back before they were read.",
              double(e.ahead_cancelled));
}

void write_prediction_metrics(Exposition& out, const ExpertStats& stats) {
  if (!stats.foresight) return;
  const ForesightStats& f = *stats.foresight;
  out.gauge("expertflow:prediction_distance", "MoE layers that are looked ahead (S).", f.horizon);
  out.gauge("expertflow:prefetch_on", "1 while guessed experts are read ahead, 0 while that does not pay.",
            f.governor.on ? 1 : 0);
  out.counter("expertflow:predict_seconds_total", "Time that predicting took of the steps.", f.predict_seconds);
  out.counter("expertflow:predicted_events_total", "Layer events that had been predicted.",
              double(f.prediction.events));
  out.counter("expertflow:predicted_experts_total", "Experts that were predicted for them.",
              double(f.prediction.predicted));
  out.counter("expertflow:predicted_routed_total", "Experts that these events asked for.", double(f.prediction.routed));
  out.counter("expertflow:predicted_named_total", "Of them, those that had been predicted.",
              double(f.prediction.named));
  out.counter("expertflow:predicted_ready_total", "Of these, those that were resident when asked for.",
              double(f.prediction.ready));
  if (f.prediction.events > 0) {
    const char* help =
        "Share of routed experts that had been predicted: among the k likeliest, among all that were named, named and "
        "resident in time.";
    out.gauge("expertflow:prediction_recall", help, f.prediction.recall_at_k(), label("of", "k"));
    out.gauge("expertflow:prediction_recall", help, f.prediction.recall_at_m(), label("of", "m"));
    out.gauge("expertflow:prediction_recall", help, f.prediction.ready_recall(), label("of", "ready"));
  }
  for (size_t d = 0; d < f.by_distance.size(); ++d)
    if (f.by_distance[d].events > 0)
      out.gauge("expertflow:prediction_recall_by_distance", "Recall among the k likeliest, by layers ahead.",
                f.by_distance[d].recall_at_k(), label("distance", std::to_string(d + 1)));
}

void write_expert_health(Exposition& out, const ExpertMetrics& metrics) {
  for (const MetricHealth& h : health_of(metrics)) {
    if (!h.value) continue;
    out.gauge("expertflow:" + std::string(h.name), h.meaning, *h.value);
  }
}

void write_memory_metrics(Exposition& out, const Engine& engine, const SchedulerStats& scheduler) {
  const MemoryPlan& plan = engine.plan();
  if (const auto slots = engine.expert_slots()) {
    const char* help = "Experts in slots of the fast tier; pinned: used by the step under way.";
    out.gauge("expertflow:expert_slots", help, double(slots->resident), label("state", "resident"));
    out.gauge("expertflow:expert_slots", help, double(slots->in_flight), label("state", "in_flight"));
    out.gauge("expertflow:expert_slots", help, double(slots->pinned), label("state", "pinned"));
    out.gauge("expertflow:expert_memory_used_bytes", "Of the fast tier, held by experts.", double(slots->used_bytes));
  }
  out.gauge("expertflow:expert_memory_budget_bytes", "Memory that experts may have (the fast tier).",
            double(std::min(plan.expert_budget, plan.expert_total)));
  out.gauge("expertflow:expert_memory_all_bytes", "What all experts would take.", double(plan.expert_total));
  const double kv = double(plan.kv_bytes);
  const char* kv_help = "KV cache by who holds it, by the blocks of full attention.";
  out.gauge("expertflow:kv_cache_bytes", kv_help, std::round(kv * scheduler.kv_used), label("held_by", "requests"));
  out.gauge("expertflow:kv_cache_bytes", kv_help, std::round(kv * scheduler.kv_kept), label("held_by", "prefix_cache"));
  out.gauge("expertflow:kv_cache_bytes", kv_help, std::round(kv * (1 - scheduler.kv_used - scheduler.kv_kept)),
            label("held_by", "nobody"));
  for (const PlanPart& part : plan.parts)
    out.gauge("expertflow:memory_planned_bytes", "Memory by region and part, as planned before loading.",
              double(part.bytes), label("region", region_name(part.region)) + "," + label("part", part.name));
  const auto regions = engine.memory_regions();
  for (const RegionReport& r : regions)
    out.gauge("expertflow:memory_used_bytes", "Memory that is held now, by region.", double(r.used),
              label("region", region_name(r.region)));
  for (const RegionReport& r : regions)
    out.gauge("expertflow:memory_peak_bytes", "The most that was held.", double(r.peak),
              label("region", region_name(r.region)));
}

void write_latency_report(Exposition& out, const LatencyReport& report, const Engine::WarmUp& warm_up) {
  out.gauge("expertflow:warm_up_seconds", "Time that filling the fast tier took before the first request.",
            warm_up.seconds);
  out.gauge("expertflow:warm_up_experts", "Experts that it brought.", double(warm_up.experts));
  out.gauge("expertflow:warm_up_demand", "Share of the accesses predicted by the profile that they serve.",
            warm_up.demand);
  std::array<LatencyReport::Figures, LatencyReport::kPhases.size()> figures;
  for (const auto phase : {LatencyReport::kCold, LatencyReport::kWarm}) figures[phase] = report.figures(phase);
  const auto each = [&](const auto& write) {
    for (size_t i = 0; i < figures.size(); ++i) write(figures[i], label("phase", LatencyReport::kPhases[i]));
  };
  each([&](const auto& f, const std::string& phase) {
    out.summary("expertflow:ttft_seconds", "From arrival to the first token, cold and warm; quantiles of the latest.",
                f.ttft, phase);
  });
  each([&](const auto& f, const std::string& phase) {
    out.summary("expertflow:itl_seconds", "Between two tokens of an answer, cold and warm; quantiles of the latest.",
                f.itl, phase);
  });
  each([&](const auto& f, const std::string& phase) {
    out.counter("expertflow:sla_requests_total", "Requests that were answered or failed.", double(f.requests), phase);
  });
  each([&](const auto& f, const std::string& phase) {
    out.counter("expertflow:sla_requests_within_total", "Of them, those within --sla-ttft and --sla-itl.",
                double(f.within), phase);
  });
  each([&](const auto& f, const std::string& phase) {
    if (f.requests > 0) out.gauge("expertflow:sla_share", "Their share.", f.share(), phase);
  });
}

void write_trace_metrics(Exposition& out, const Tracer& tracer) {
  const auto sent = tracer.export_counts();
  if (!sent) return;
  const TraceCounts traces = tracer.counts();
  const char* help = "Requests by whether their trace was sent: sampled, failed (sent all the same), not sampled.";
  out.counter("expertflow:traces_total", help, double(traces.sampled), label("decision", "sampled"));
  out.counter("expertflow:traces_total", help, double(traces.failed), label("decision", "failed"));
  out.counter("expertflow:traces_total", help, double(traces.dropped), label("decision", "not_sampled"));
  out.counter("expertflow:trace_spans_exported_total", "Spans that the collector took.", double(sent->exported));
  const char* dropped = "Spans that were lost: no room, refused by the collector, collector not to be reached.";
  out.counter("expertflow:trace_spans_dropped_total", dropped, double(sent->dropped_full), label("reason", "no_room"));
  out.counter("expertflow:trace_spans_dropped_total", dropped, double(sent->dropped_refused),
              label("reason", "refused"));
  out.counter("expertflow:trace_spans_dropped_total", dropped, double(sent->dropped_unreachable),
              label("reason", "unreachable"));
  out.counter("expertflow:trace_export_failures_total", "Exports that failed, each attempt.", double(sent->failures));
  out.gauge("expertflow:trace_spans_waiting", "Spans on their way to the collector.", double(sent->waiting));
}

}  // namespace ef::server
