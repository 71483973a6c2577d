#include "expertflow/engine/recall.h"

#include <algorithm>
#include <cmath>

#include "expertflow/engine/step_recorder.h"
#include "expertflow/predict/candidates.h"

namespace ef {

void RecallCount::add(const RecallCount& o) {
  cases += o.cases, hits_k += o.hits_k, hits_2k += o.hits_2k, exact += o.exact, half += o.half;
  likeliest += o.likeliest, first_1 += o.first_1, first_3 += o.first_3;
  expected_k += o.expected_k, candidates += o.candidates, covered += o.covered;
}

RecallTable::RecallTable(std::string predictor, int layers, int top_k)
    : predictor_(std::move(predictor)), layers_(layers), top_k_(top_k) {
  counts_.resize(2 * size_t(layers) * size_t(layers));
}
RecallCount& RecallTable::at(StepPoint point, LayerId layer, LayerId target) {
  return counts_[(size_t(point) * size_t(layers_) + size_t(layer)) * size_t(layers_) + size_t(target)];
}
const RecallCount& RecallTable::at(StepPoint point, LayerId layer, LayerId target) const {
  return const_cast<RecallTable*>(this)->at(point, layer, target);
}
double RecallTable::recall_of(const RecallCount& c, bool twice) const {
  return c.cases ? double(twice ? c.hits_2k : c.hits_k) / double(c.cases) / top_k_ : -1;
}
double RecallTable::recall(StepPoint point, int distance, bool twice, LayerId first_target) const {
  double sum = 0;
  int n = 0;
  for (LayerId target = std::max<LayerId>(distance, first_target); target < layers_; ++target) {
    const RecallCount& c = at(point, target - distance, target);
    if (c.cases) sum += recall_of(c, twice), ++n;
  }
  return n ? sum / n : -1;
}
RecallCount RecallTable::sum(StepPoint point, int distance) const {
  RecallCount all;
  for (LayerId target = distance; target < layers_; ++target) all.add(at(point, target - distance, target));
  return all;
}
void RecallTable::add(const RecallTable& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i].add(other.counts_[i]);
}

namespace {

// One token at a time through all looks.
class Judge {
 public:
  Judge(const Config& config, Stream& stream) : config_(config), stream_(stream) {
    probabilities_.resize(size_t(config.router.experts));
  }

  void token(Predictor& predictor, RecallTable& table, const RecordedRows& rows, int64_t row) {
    const int32_t sequence = 0;
    predictor.begin_step({{&rows.tokens[size_t(row)], 1}, {&sequence, 1}, {&rows.positions[size_t(row)], 1}});
    const int64_t hidden = config_.hidden, experts = config_.router.experts, top_k = config_.router.top_k;
    for (LayerId l = 0; l < LayerId(config_.layers.size()); ++l) {
      const RecordedRows::Layer& layer = rows.layers[size_t(l)];
      StepView view;
      view.point = StepPoint::kLayerInput, view.layer = l, view.rows = 1;
      view.residual = &layer.input[size_t(row * hidden)];
      look(predictor, table, rows, row, view);
      if (!config_.layers[size_t(l)].sparse) continue;
      view.point = StepPoint::kRouted;
      view.residual = &layer.routed[size_t(row * hidden)], view.x = &layer.x[size_t(row * hidden)];
      view.logits = &layer.logits[size_t(row * experts)];
      view.chosen = std::span(layer.chosen).subspan(size_t(row * top_k), size_t(top_k));
      view.routing = {1, int(top_k), view.chosen.data(), nullptr};
      look(predictor, table, rows, row, view);
    }
  }

 private:
  void look(Predictor& predictor, RecallTable& table, const RecordedRows& rows, int64_t row, const StepView& view) {
    predictor.observe(view);
    const LayerId layers = LayerId(config_.layers.size());
    LayerId first = view.layer, last = layers - 1;
    while (first < layers && !predictor.covers(view.point, view.layer, first)) ++first;
    while (last > first && !predictor.covers(view.point, view.layer, last)) --last;
    if (first >= layers) return;
    predictor.queue(view, first, last, stream_);
    stream_.synchronize();
    for (LayerId target = first; target <= last; ++target) {
      if (!predictor.covers(view.point, view.layer, target)) continue;
      predictor.finish(target, probabilities_.data());
      const size_t k = size_t(config_.router.top_k);
      count(target, std::span(rows.layers[size_t(target)].chosen).subspan(size_t(row) * k, k),
            table.at(view.point, view.layer, target));
    }
  }

  void count(LayerId target, std::span<const int32_t> chosen, RecallCount& c) {
    const size_t k = chosen.size();
    CandidateRule all;
    all.mass = 2;
    const auto ranked = ranking_.rank(target, probabilities_, 1, all);
    const auto chosen_among = [&](size_t first, size_t end) {
      size_t n = 0;
      for (size_t i = first; i < std::min(end, ranked.size()); ++i)
        n += std::find(chosen.begin(), chosen.end(), ranked[i].key.expert) != chosen.end();
      return n;
    };
    const size_t hits = chosen_among(0, k);
    ++c.cases;
    c.hits_k += hits, c.hits_2k += hits + chosen_among(k, 2 * k);
    c.exact += hits == k, c.half += 2 * hits >= k;
    const auto first = size_t(
        std::find_if(ranked.begin(), ranked.end(), [&](const Candidate& one) { return one.key.expert == chosen[0]; }) -
        ranked.begin());
    c.likeliest += chosen_among(0, 1), c.first_1 += first < 1, c.first_3 += first < 3;
    for (size_t i = 0; i < k; ++i) c.expected_k += double(ranked[i].probability);
    const size_t n = confident_.rank(target, probabilities_, 1, {}).size();
    c.candidates += double(n), c.covered += double(chosen_among(0, n));
  }

  const Config& config_;
  Stream& stream_;
  std::vector<float> probabilities_;
  CandidateRanking ranking_, confident_;
};

}  // namespace

std::vector<RecallTable> measure_recall(Engine& engine, std::span<Predictor* const> predictors, Stream& stream,
                                        std::span<const TokenId> tokens, const RecallOptions& options,
                                        const std::function<void(uint64_t)>& progress) {
  const Config& config = engine.config();
  std::vector<RecallTable> tables;
  for (const Predictor* p : predictors)
    tables.emplace_back(std::string(p->name()), int(config.layers.size()), config.router.top_k);
  Judge judge(config, stream);
  uint64_t done = 0;
  record_windows(engine, tokens, options.window, options.most, options.from_start, [&](const RecordedRows& rows) {
    for (size_t p = 0; p < predictors.size(); ++p)
      for (int64_t row = 0; row < rows.rows; ++row) judge.token(*predictors[p], tables[p], rows, row);
    done += uint64_t(rows.rows);
    if (progress) progress(done);
    return true;
  });
  return tables;
}

DecayFit fit_decay(std::span<const double> t, std::span<const double> y) {
  // For a given b the rest is linear; b by a fine grid.
  DecayFit best;
  double least = -1;
  const double n = double(t.size());
  constexpr int kSteps = 400;
  for (int i = 1; i <= kSteps; ++i) {
    const double b = 0.01 * i;
    double se = 0, see = 0, sy = 0, sey = 0;
    for (size_t j = 0; j < t.size(); ++j) {
      const double e = std::exp(-b * t[j]);
      se += e, see += e * e, sy += y[j], sey += e * y[j];
    }
    const double determinant = n * see - se * se;
    if (determinant <= 1e-12) continue;
    double a = (n * sey - se * sy) / determinant, c = (sy - a * se) / n;
    if (c < 0) a = sey / see, c = 0;  // a plateau below nothing is none
    double square = 0, worst = 0;
    for (size_t j = 0; j < t.size(); ++j) {
      const double off = a * std::exp(-b * t[j]) + c - y[j];
      square += off * off, worst = std::max(worst, std::fabs(off));
    }
    if (least < 0 || square < least) least = square, best = {a, b, c, worst};
  }
  return best;
}

}  // namespace ef
