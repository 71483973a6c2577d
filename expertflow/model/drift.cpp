#include "expertflow/model/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

// 0 where both are all zeros; infinite where the fast one is not finite and the exact one is.
double relative_error(std::span<const float> fast, std::span<const float> exact) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (!std::isfinite(exact[i])) continue;  // overflow of the model's own making
    if (!std::isfinite(fast[i])) return INFINITY;
    const double d = double(fast[i]) - double(exact[i]);
    difference += d * d;
    norm += double(exact[i]) * double(exact[i]);
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace

std::string DriftStats::text() const {
  if (checks == 0) return "drift: no layer checked";
  std::string out = fmt::format("drift: {} layers checked, worst relative error {:.2g}", checks, worst);
  if (fallen.empty()) return out;
  out += "; exact ops since then for layers";
  for (const LayerId layer : fallen) out += fmt::format(" {}", layer);
  return out;
}

Drift::Drift(const DriftOptions& options, std::vector<Format> formats)
    : options_(options), formats_(std::move(formats)), exact_(formats_.size(), false) {}

void Drift::begin_step() {
  const bool checked = next_step_is_checked();
  ++steps_;
  due_ = -1;
  if (!checked) return;
  for (size_t i = 0; i < formats_.size(); ++i) {
    last_ = LayerId((size_t(last_) + 1) % formats_.size());
    if (formats_[size_t(last_)] == Format::kCount || exact_[size_t(last_)]) continue;
    due_ = last_;
    return;
  }
}

double Drift::limit(LayerId layer) const {
  const Format format = formats_[size_t(layer)];
  if (format == Format::kBF16) return options_.limit_bf16;
  const bool block = format_info(format).block_elements > 1;
  return block && options_.rounds_to_8_bits ? options_.limit_q8 : options_.limit_f16;
}

bool Drift::record(LayerId layer, std::span<const float> fast, std::span<const float> exact) {
  EF_DCHECK(fast.size() == exact.size());
  const double error = relative_error(fast, exact);
  ++stats_.checks;
  stats_.worst = std::max(stats_.worst, error);
  if (error <= limit(layer)) return true;
  exact_[size_t(layer)] = true;
  stats_.fallen.push_back(layer);
  return false;
}

}  // namespace ef
