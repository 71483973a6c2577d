#include "expertflow/replay/forecast.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

class None final : public Forecast {
 public:
  void predict(size_t, LayerId, LayerId, std::span<float> p) override { std::fill(p.begin(), p.end(), 0.f); }
};

class Oracle final : public Forecast {
 public:
  explicit Oracle(const Workload& workload) : workload_(workload) {}
  void predict(size_t step, LayerId, LayerId target, std::span<float> p) override {
    std::fill(p.begin(), p.end(), 0.f);
    for (const ExpertId expert : workload_.steps[step].events[size_t(target)].experts) p[size_t(expert)] = 1.f;
  }

 private:
  const Workload& workload_;
};

// What the latest step's layer asked for.
class PreviousToken final : public Forecast {
 public:
  explicit PreviousToken(const Workload& workload) : workload_(workload), latest_(size_t(workload.layers())) {}
  void predict(size_t, LayerId, LayerId target, std::span<float> p) override {
    std::fill(p.begin(), p.end(), 0.f);
    for (const ExpertId expert : latest_[size_t(target)]) p[size_t(expert)] = 0.4f;
  }
  void observe(size_t step, LayerId layer) override {
    latest_[size_t(layer)] = workload_.steps[step].events[size_t(layer)].experts;
  }

 private:
  const Workload& workload_;
  std::vector<std::vector<ExpertId>> latest_;
};

// How often each expert was asked for of late.
class Frequency final : public Forecast {
 public:
  explicit Frequency(const Workload& workload) : workload_(workload), rates_(size_t(workload.layers())) {
    for (size_t i = 0; i < rates_.size(); ++i) rates_[i].resize(size_t(workload.geometry.layers[i].experts));
  }
  void predict(size_t, LayerId, LayerId target, std::span<float> p) override {
    std::copy(rates_[size_t(target)].begin(), rates_[size_t(target)].end(), p.begin());
  }
  void observe(size_t step, LayerId layer) override {
    for (float& rate : rates_[size_t(layer)]) rate *= kKeep;
    for (const ExpertId expert : workload_.steps[step].events[size_t(layer)].experts)
      rates_[size_t(layer)][size_t(expert)] += 1 - kKeep;
  }

 private:
  static constexpr float kKeep = 0.97f;
  const Workload& workload_;
  std::vector<std::vector<float>> rates_;
};

// Which experts of the target followed those of the layer: counts by pairs, learned as it goes.
class Transitions final : public Forecast {
 public:
  explicit Transitions(const Workload& workload) : workload_(workload) {}
  void predict(size_t step, LayerId layer, LayerId target, std::span<float> p) override {
    std::fill(p.begin(), p.end(), 0.f);
    if (layer < 0 || target - layer > kMostDistance) return;
    const Table& table = table_of(layer, target);
    const auto& from = workload_.steps[step].events[size_t(layer)].experts;
    for (const ExpertId f : from) {
      const float* row = table.counts.data() + size_t(f) * p.size();
      const float seen = table.seen[size_t(f)];
      for (size_t e = 0; e < p.size() && seen > 0; ++e) p[e] += row[e] / seen / float(from.size());
    }
    for (float& each : p) each = std::min(each, 1.f);  // sums of shares, rounded
  }
  void observe(size_t step, LayerId layer) override {
    const auto& events = workload_.steps[step].events;
    for (LayerId from = std::max(0, layer - kMostDistance); from < layer; ++from) {
      if (events[size_t(from)].experts.empty() || events[size_t(layer)].experts.empty()) continue;
      Table& table = table_of(from, layer);
      const size_t width = size_t(workload_.geometry.layers[size_t(layer)].experts);
      for (const ExpertId f : events[size_t(from)].experts) {
        table.seen[size_t(f)] += 1;
        for (const ExpertId e : events[size_t(layer)].experts) table.counts[size_t(f) * width + size_t(e)] += 1;
      }
    }
  }

 private:
  static constexpr LayerId kMostDistance = 4;
  struct Table {
    std::vector<float> counts, seen;
  };
  Table& table_of(LayerId from, LayerId to) {
    Table& table = tables_[{from, to}];
    if (table.seen.empty()) {
      const size_t rows = size_t(workload_.geometry.layers[size_t(from)].experts);
      table.seen.resize(rows);
      table.counts.resize(rows * size_t(workload_.geometry.layers[size_t(to)].experts));
    }
    return table;
  }
  const Workload& workload_;
  std::map<std::pair<LayerId, LayerId>, Table> tables_;
};

template <class T>
std::unique_ptr<Forecast> make(const Workload& workload) {
  return std::make_unique<T>(workload);
}
std::unique_ptr<Forecast> make_none(const Workload&) { return std::make_unique<None>(); }

constexpr std::array kForecasts = {
    ForecastInfo{"none", "nothing is copied ahead", make_none},
    ForecastInfo{"oracle", "what each layer will ask for, from the trace itself", make<Oracle>},
    ForecastInfo{"previous-token", "what the layer asked for last", make<PreviousToken>},
    ForecastInfo{"frequency", "what the layer asked for most of late", make<Frequency>},
    ForecastInfo{"transitions", "what followed the experts of the present layer so far", make<Transitions>},
};

}  // namespace

std::span<const ForecastInfo> forecasts() { return kForecasts; }

std::unique_ptr<Forecast> make_forecast(std::string_view name, const Workload& workload) {
  std::string known;
  for (const ForecastInfo& info : kForecasts) {
    if (info.name == name) return info.make(workload);
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  fail<ConfigError>("predictor '{}': unknown in a replay; known are {}", name, known);
}

}  // namespace ef
