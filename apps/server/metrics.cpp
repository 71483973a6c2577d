#include "apps/server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ef::server {

namespace {

// vLLM's bounds, with finer ones in front: small models on a CPU decode in less than its first.
std::vector<double> first_token_bounds() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
}
std::vector<double> token_bounds() {
  return {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
}
std::vector<double> request_bounds() {
  return {.05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
std::vector<double> size_bounds() {
  return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void Histogram::observe(double value) {
  ++counts_[size_t(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin())];
  ++count_;
  sum_ += value;
}

std::string escape_label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

void Exposition::head(std::string_view name, std::string_view help, const char* type) {
  if (last_ == name) return;
  last_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void Exposition::sample(std::string_view name, double value, std::string_view labels) {
  std::string all = labels_;
  if (!labels.empty()) all += (all.empty() ? "" : ",") + std::string(labels);
  text_ += fmt::format("{}{{{}}} {}\n", name, all, number(value));
}

void Exposition::counter(std::string_view name, std::string_view help, double value, std::string_view labels) {
  head(name, help, "counter");
  sample(name, value, labels);
}
void Exposition::gauge(std::string_view name, std::string_view help, double value, std::string_view labels) {
  head(name, help, "gauge");
  sample(name, value, labels);
}

void Exposition::histogram(std::string_view name, std::string_view help, const Histogram& h) {
  head(name, help, "histogram");
  uint64_t below = 0;
  const std::string bucket = std::string(name) + "_bucket";
  for (size_t i = 0; i < h.bounds().size(); ++i) {
    below += h.counts()[i];
    sample(bucket, double(below), fmt::format("le=\"{}\"", number(h.bounds()[i])));
  }
  sample(bucket, double(h.count()), "le=\"+Inf\"");
  sample(std::string(name) + "_sum", h.sum(), "");
  sample(std::string(name) + "_count", double(h.count()), "");
}

void Exposition::summary(std::string_view name, std::string_view help, const LatestValues& v, std::string_view labels) {
  head(name, help, "summary");
  for (const double quantile : {.5, .95, .99})
    sample(name, percentile(v.values(), quantile).value_or(std::nan("")),
           fmt::format("{},quantile=\"{}\"", labels, quantile));
  sample(std::string(name) + "_sum", v.sum(), labels);
  sample(std::string(name) + "_count", double(v.count()), labels);
}

RequestMetrics::RequestMetrics()
    : ttft_(first_token_bounds()),
      itl_(token_bounds()),
      e2e_(request_bounds()),
      queue_(request_bounds()),
      prefill_(request_bounds()),
      decode_(request_bounds()),
      inference_(request_bounds()),
      per_token_(token_bounds()),
      prompt_tokens_(size_bounds()),
      generated_tokens_(size_bounds()) {}

void RequestMetrics::on_token(const CompletionTimes&, Duration since) {
  const std::lock_guard lock(mutex_);
  itl_.observe(seconds(since));
}

void RequestMetrics::on_end(const CompletionTimes& t, const char* finish) {
  const std::lock_guard lock(mutex_);
  ++finished_[finish];
  const bool started = t.started.count() > 0, answered = t.first_token.count() > 0;
  prompt_tokens_.observe(double(t.prompt_tokens));
  generated_tokens_.observe(double(t.generated_tokens));
  e2e_.observe(seconds(t.ended - t.submitted));
  queue_.observe(seconds((started ? t.started : t.ended) - t.submitted));
  if (started) prompt_total_ += uint64_t(t.prompt_tokens), cached_total_ += uint64_t(t.cached_tokens);
  if (started) inference_.observe(seconds(t.ended - t.started));
  generated_total_ += uint64_t(t.generated_tokens);
  if (!answered) return;
  ttft_.observe(seconds(t.first_token - t.submitted));
  prefill_.observe(seconds(t.first_token - t.started));
  decode_.observe(seconds(t.ended - t.first_token));
  prompt_seconds_ += seconds(t.first_token - t.started);
  decode_seconds_ += seconds(t.ended - t.first_token);
  if (t.generated_tokens > 1) per_token_.observe(seconds(t.ended - t.first_token) / double(t.generated_tokens - 1));
}

void RequestMetrics::write(Exposition& out) const {
  const std::lock_guard lock(mutex_);
  out.counter("vllm:prompt_tokens_total", "Prompt tokens of requests that began.", double(prompt_total_));
  out.counter("vllm:generation_tokens_total", "Generated tokens.", double(generated_total_));
  for (const auto& [reason, count] : finished_)
    out.counter("vllm:request_success_total", "Requests that ended, by reason.", double(count),
                "finished_reason=\"" + reason + "\"");
  out.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", ttft_);
  out.histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", itl_);
  out.histogram("vllm:request_time_per_output_token_seconds", "Mean time between the tokens of an answer.", per_token_);
  out.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", e2e_);
  out.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", queue_);
  out.histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", prefill_);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the end.", decode_);
  out.histogram("vllm:request_inference_time_seconds", "From the first step to the end.", inference_);
  out.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_tokens_);
  out.histogram("vllm:request_generation_tokens", "Tokens of an answer.", generated_tokens_);
  out.counter("expertflow:prompt_tokens_cached_total", "Prompt tokens that the prefix cache held.",
              double(cached_total_));
  out.counter("expertflow:prompt_seconds_total", "Time from first step to first token, all requests.", prompt_seconds_);
  out.counter("expertflow:generation_seconds_total", "Time from first token to the end, all requests.",
              decode_seconds_);
}

}  // namespace ef::server
