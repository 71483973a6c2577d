// What requests took, as vLLM counts it, and Prometheus's text form.
#pragma once
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "apps/server/latency_report.h"
#include "expertflow/engine/completion.h"
#include "expertflow/engine/engine_loop.h"

namespace ef::server {

/// Counts under bounds, as Prometheus wants them: a value falls into every bucket whose bound is at least it.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }  ///< by bucket, not cumulated; the last: beyond
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

/// Prometheus's text exposition, version 0.0.4: each metric's HELP and TYPE once.
class Exposition {
 public:
  explicit Exposition(std::string labels) : labels_(std::move(labels)) {}  ///< on every sample: model_name="x"
  void counter(std::string_view name, std::string_view help, double value, std::string_view labels = "");
  void gauge(std::string_view name, std::string_view help, double value, std::string_view labels = "");
  void histogram(std::string_view name, std::string_view help, const Histogram& h);
  /// P50, P95 and P99 of the values that are still known, sum and count of all.
  void summary(std::string_view name, std::string_view help, const LatestValues& values, std::string_view labels);
  const std::string& text() const { return text_; }

 private:
  void head(std::string_view name, std::string_view help, const char* type);
  void sample(std::string_view name, double value, std::string_view labels);
  std::string labels_, text_, last_;
};
std::string escape_label(std::string_view value);

class RequestMetrics final : public CompletionWatch {
 public:
  RequestMetrics();
  void on_token(const CompletionTimes& times, Duration since) override;
  void on_end(const CompletionTimes& times, const char* finish) override;
  void write(Exposition& out) const;

 private:
  mutable std::mutex mutex_;
  Histogram ttft_, itl_, e2e_, queue_, prefill_, decode_, inference_, per_token_, prompt_tokens_, generated_tokens_;
  std::map<std::string, uint64_t> finished_{{"abort", 0}, {"error", 0}, {"length", 0}, {"stop", 0}};
  uint64_t prompt_total_ = 0, generated_total_ = 0, cached_total_ = 0;
  double prompt_seconds_ = 0, decode_seconds_ = 0;
};

}  // namespace ef::server
