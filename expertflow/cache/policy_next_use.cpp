// Who is expected to be needed latest goes first: Belady's rule with an expectation in place of the future.
//
//   time until the next use = (layers until the expert's layer comes) * 2 / layers + (1 - q) / p      [tokens]
//
// p is the probability that a token wants the expert, q that its layer's coming event does: p itself, unless a
// prediction named the layer. The layers count twice of what they should, as measured: what p promises for far tokens
// is less sure than the order of layers.
//
// p is a weighted sum of how often the expert was wanted over the latest 0.5, 1, 2, 4, 16, 64, 256 and 1024 tokens
// (each a fading average), of what its router gave it over the latest 0.5, 4 and 32 tokens, chosen or nearly so (where
// the cache is told), and a constant. How much each of these says differs by model and text, so the weights are
// learned while it runs: each event is a lesson in what they had said about its layer (least squares, AdaGrad steps, a
// few hundred events). On held-out text it misses less than any fixed mixture; docs/benchmarks has the figures.
#include <algorithm>
#include <array>
#include <cmath>

#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

constexpr std::array kHalfLives = {0.5, 1., 2., 4., 16., 64., 256., 1024.};  // tokens
constexpr std::array kScoreHalfLives = {0.5, 4., 32.};                       // tokens, of the router's probabilities
constexpr size_t kRates = kHalfLives.size();
constexpr size_t kTerms = kRates + kScoreHalfLives.size() + 1;  // and the constant
constexpr double kUsual = 0.125;                                // of an expert nobody has seen: 4 of 32
constexpr double kStep = 0.05;                                  // of the weights
constexpr double kLeast = 1e-4;                                 // p, so that its inverse is finite
constexpr double kLayerWeight = 2;
constexpr int64_t kManyRows = 32;  // prompts: not what decoding steps look like

class NextUsePolicy final : public HistoryPolicy {
 public:
  explicit NextUsePolicy(const PolicyContext& context) : HistoryPolicy(context), layers_(context.layers) {
    weights_.fill(0);
    for (size_t t = 0; t < kRates; ++t) weights_[t] = 1. / double(kRates);
    squares_.fill(1e-3);
  }
  std::string_view name() const override { return "next-use"; }

  void on_access(const AccessEvent& event) override {
    HistoryPolicy::on_access(event);
    layers_ = std::max(layers_, event.layer + 1);
    if (event.experts.empty()) return;
    auto& row = grown(event.layer, *std::max_element(event.experts.begin(), event.experts.end()));
    const int64_t rows = rows_of(event);
    if (rows < kManyRows) rows_ += 0.1 * (double(rows) - rows_);
    wanted_.assign(row.size(), 0.);
    for (size_t i = 0; i < event.experts.size(); ++i)
      wanted_[size_t(event.experts[i])] = std::min(1., double(event.tokens[i]) / double(rows));
    std::array<double, kTerms> moves{};
    for (size_t t = 0; t < kTerms - 1; ++t)
      moves[t] = 1 - std::exp2(-double(rows) / (t < kRates ? kHalfLives[t] : kScoreHalfLives[t - kRates]));
    const bool scored = scored_layer_ == event.layer;
    for (size_t i = 0; i < row.size(); ++i) {
      learn(row[i], wanted_[i]);
      for (size_t t = 0; t < kRates; ++t) row[i][t] += moves[t] * (wanted_[i] - row[i][t]);
      const double score = i < scores_.size() ? scores_[i] : 0.;
      for (size_t t = kRates; scored && t < kTerms - 1; ++t) row[i][t] += moves[t] * (score - row[i][t]);
    }
    scored_layer_ = -1;
  }
  bool wants_scores() const override { return true; }
  void on_scores(LayerId layer, std::span<const std::pair<ExpertId, float>> probable) override {
    scored_layer_ = layer;
    scores_.clear();
    for (const auto& [expert, probability] : probable) {
      if (scores_.size() <= size_t(expert)) scores_.resize(size_t(expert) + 1);
      scores_[size_t(expert)] = double(probability);
    }
  }

 protected:
  // Ranked by the lowest score first: the negative time.
  VictimScore score(ExpertKey key, const ExpertHistory& history, LayerId current) const override {
    const double token = size_t(key.layer) < rates_.size() && size_t(key.expert) < rates_[size_t(key.layer)].size()
                             ? rate(rates_[size_t(key.layer)][size_t(key.expert)])
                             : kUsual;
    // Several sequences: a step asks if one of its rows does.
    const double p = rows_ > 1.5 ? 1 - std::pow(1 - token, rows_) : token;
    const double q = layer_predicted(key.layer) ? predicted(key) : p;
    const double layers = double(distance(key.layer, current)) / double(std::max(layers_, 1));
    return {-(kLayerWeight * layers + (1 - q) / p), history.last_event, 0};
  }

 private:
  using Terms = std::array<double, kTerms>;

  static int64_t rows_of(const AccessEvent& event) {
    // Whoever does not say how many rows there were: at least those of the busiest expert.
    const int32_t busiest = *std::max_element(event.tokens.begin(), event.tokens.end());
    return std::max<int64_t>({event.rows, busiest, 1});
  }
  std::vector<Terms>& grown(LayerId layer, ExpertId largest) {
    if (rates_.size() <= size_t(layer)) rates_.resize(size_t(layer) + 1);
    auto& row = rates_[size_t(layer)];
    Terms usual;
    usual.fill(kUsual);
    for (size_t t = kRates; t < kTerms - 1; ++t) usual[t] = 0;
    usual.back() = 1;
    if (row.size() <= size_t(largest)) row.resize(size_t(largest) + 1, usual);
    return row;
  }
  double rate(const Terms& terms) const {
    double p = 0;
    for (size_t t = 0; t < kTerms; ++t) p += weights_[t] * terms[t];
    return std::clamp(p, kLeast, 1.);
  }
  void learn(const Terms& terms, double wanted) {
    double p = 0;
    for (size_t t = 0; t < kTerms; ++t) p += weights_[t] * terms[t];
    for (size_t t = 0; t < kTerms; ++t) {
      const double slope = (wanted - p) * terms[t];
      squares_[t] += slope * slope;
      weights_[t] += kStep * slope / std::sqrt(squares_[t]);
    }
  }

  int layers_;
  double rows_ = 1;                        // of a decoding step, moving average
  std::vector<std::vector<Terms>> rates_;  // by layer, by expert
  Terms weights_, squares_;
  std::vector<double> wanted_;  // scratch
  LayerId scored_layer_ = -1;   // whose coming event scores_ is about
  std::vector<double> scores_;  // by expert
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_next_use(const PolicyContext& context) {
  return std::make_unique<NextUsePolicy>(context);
}

}  // namespace ef
