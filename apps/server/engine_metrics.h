// The engine's side of /metrics: scheduler, KV cache, experts by tier and layer, predictions, links, memory.
#pragma once
#include "apps/server/latency_report.h"
#include "apps/server/metrics.h"
#include "apps/server/tracing/request_trace.h"

namespace ef::server {

/// Scheduler and KV cache.
void write_scheduler_metrics(Exposition& out, const EngineLoop::Snapshot& snapshot);
/// How often experts were near, by tier and by layer; what copying them took and what of it was of use.
void write_expert_metrics(Exposition& out, const ExpertStats& stats, const ExpertMetrics& metrics);
/// What was predicted against what layers asked for; nothing where nothing is predicted.
void write_prediction_metrics(Exposition& out, const ExpertStats& stats);
/// The five that have a healthy range, as far as they are known: expertflow:prediction_hit_rate, ...
void write_expert_health(Exposition& out, const ExpertMetrics& metrics);
/// Slots and memory, as they are now.
void write_memory_metrics(Exposition& out, const Engine& engine, const SchedulerStats& scheduler);
/// Time to the first token and between tokens, cold and warm, and the share within the service level.
void write_latency_report(Exposition& out, const LatencyReport& report, const Engine::WarmUp& warm_up);
/// What was traced, and what became of it on its way to the collector.
void write_trace_metrics(Exposition& out, const Tracer& tracer);

}  // namespace ef::server
